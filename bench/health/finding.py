"""A finding: a check's result, with a remedy for a fault."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of a check by `bench doctor`, printed as a line. The status `warn` means that runs work without the
    missing part."""

    name: str
    """Name of the checked part."""
    state: State
    """`ok`, `warn` or `fail`."""
    detail: str
    """Result in words."""
    remedy: str = ""
    """Step that mends a fault; empty if none is needed."""
