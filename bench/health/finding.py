"""A finding: what a check saw, and the remedy where it is not well."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `bench doctor`.  `warn`: something is missing that a run can do without."""

    name: str
    state: State
    detail: str
    remedy: str = ""
