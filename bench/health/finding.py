"""A finding: a check's result, with a remedy for a fault."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A line printed by `bench doctor`; status `warn` means that runs work without the missing part."""

    name: str
    state: State
    detail: str
    remedy: str = ""
