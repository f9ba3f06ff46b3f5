"""What a crew of workers promises to the loop that feeds it (`bench.sweep.dispatch`)."""

import faulthandler
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from bench.answer.run import Memory, Place, Step, run_cell
from bench.cell import AnyCell
from bench.errors import MALFORMED, StorageError
from bench.record.store import Record
from bench.sanitize import first_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A worker is gone, and the cell that it was at with it; `again` where another may try that cell."""

    reason: str
    again: bool = True


@dataclass(frozen=True, slots=True)
class Returned:
    """A worker gives its cell back unharmed: the place is at fault."""


@dataclass(frozen=True, slots=True)
class Gone:
    """A worker without a cell left."""


News = Step | Record | Lost | Returned | Gone


class Crew(Protocol):
    """Workers by name, one cell at a time each; they come and go.  A record in its news is on disk."""

    def members(self) -> tuple[str, ...]:
        """Who may be given cells now."""

    def give(self, worker: str, cell: AnyCell, *, demand: int) -> None:
        """Let a worker answer a cell; `demand` cells could run at this moment, this one among them."""

    def news(self) -> list[tuple[str, News]]:
        """What happened, by worker, once something has: also nothing, where members came.

        Raises `BenchError` where nobody is left to go on.
        """

    def close(self) -> None:
        """Let the workers go; cells in flight are lost."""


def answer(cell: AnyCell, place: Place, memory: Memory, told: Callable[[Step], None]) -> Record:
    """Run one cell to a record that can be written, within the place's time limit; a worker that passes it ends
    itself."""
    limit = nullcontext() if place.limit is None else _ends_after(place.limit, hung(place.run, cell))
    with limit:
        found = run_cell(cell, place, memory, told=told)
    try:
        found.json()
    except MALFORMED as error:  # a plug-in's word of another kind, in notes or marks
        reason = f"what is to be recorded is no JSON: {first_line(error)}"
        return replace(found, status="crashed", reason=reason, summary={}, victims=[], arrays=None)
    return found


def hung(run: Path, cell: AnyCell) -> Path:
    """Where it is written what a cell was at when its time was over."""
    return run / "hung" / f"{cell.id}.txt"


@contextmanager
def _ends_after(seconds: float, trace: Path) -> Iterator[None]:
    """The process ends itself after so long, whatever it is at: a thread of faulthandler's, which needs no
    interpreter, writes where every thread was."""
    try:
        trace.parent.mkdir(parents=True, exist_ok=True)
        trace.unlink(missing_ok=True)
        file = trace.open("x")  # a new file: not what a link of this name leads to
    except OSError as error:
        raise StorageError(f"{trace}: cannot be written ({error.strerror})") from None
    with file:
        faulthandler.dump_traceback_later(seconds, exit=True, file=file)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
    trace.unlink(missing_ok=True)


def too_long(place: Place) -> str:
    """The reason of a cell whose time was over."""
    return f"took longer than the time limit of {place.limit:g} s; give --time-limit more, or mend what hangs"


def steady(device: str) -> None:
    """What makes figures repeat bit for bit: one thread, and on a GPU deterministic algorithms."""
    torch.set_num_threads(1)
    if device != "cpu":
        torch.use_deterministic_algorithms(True)
