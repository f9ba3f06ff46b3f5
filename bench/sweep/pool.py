"""What a pool of workers promises to the loop that feeds it (`bench.sweep.dispatch`)."""

import faulthandler
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from bench.answer.context import Memory, RunContext, TrainingProgress
from bench.answer.run import run
from bench.answer.train import OnProgress
from bench.cell import AnyCell
from bench.errors import MALFORMED, StorageError
from bench.record.schema import Record
from bench.record.store import to_json
from bench.sanitize import first_line


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost:
    """A worker is gone, and the cell that it ran with it; `retry` where another worker may try that cell."""

    reason: str
    retry: bool = True


@dataclass(frozen=True, slots=True)
class CellReturned:
    """A worker gives its cell back unharmed: the machine is at fault."""


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """A worker without a cell left."""


Event = TrainingProgress | Record | WorkerLost | CellReturned | WorkerGone


class WorkerPool(Protocol):
    """Workers by name, one cell at a time each; they come and go.  A record among its events is on disk."""

    def workers(self) -> tuple[str, ...]:
        """Who may be given cells now."""

    def submit(self, worker: str, cell: AnyCell, *, demand: int) -> None:
        """Let a worker answer a cell; `demand` cells could run at this moment, this one among them."""

    def events(self) -> list[tuple[str, Event]]:
        """What happened, by worker, once something has: also nothing, where workers came.

        Raises `BenchError` where nobody is left to go on.
        """

    def close(self) -> None:
        """Let the workers go; cells in flight are lost."""


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """A pool that can be started, in words, and how many workers it has, None where that is not known."""

    start: Callable[[], WorkerPool]
    description: str
    jobs: int | None


def run_within_limits(cell: AnyCell, context: RunContext, memory: Memory, on_progress: OnProgress) -> Record:
    """Run one cell to a record that can be written, within the time limit; a worker that passes it ends itself."""
    limit = context.time_limit
    with nullcontext() if limit is None else _exit_after(limit, trace_path(context.run, cell)):
        record = run(cell, context, memory, on_progress)
    try:
        to_json(record)
    except MALFORMED as error:  # a plug-in's value of another kind, in notes or marks
        reason = f"what is to be recorded is no JSON: {first_line(error)}"
        return replace(record, status="crashed", reason=reason, result=None)
    return record


def trace_path(run: Path, cell: AnyCell) -> Path:
    """Where it is written what a cell was doing when its time was over."""
    return run / "hung" / f"{cell.id}.txt"


@contextmanager
def _exit_after(seconds: float, trace: Path) -> Iterator[None]:
    """The process ends itself after so long, whatever it does: a thread of faulthandler's, which needs no
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


def timeout_reason(seconds: float) -> str:
    """The reason of a cell whose time was over."""
    return f"took longer than the time limit of {seconds:g} s; give --time-limit more, or mend what hangs"


def make_deterministic(device: str) -> None:
    """What makes figures repeat bit for bit: one thread, and on a GPU deterministic algorithms."""
    torch.set_num_threads(1)
    if device != "cpu":
        torch.use_deterministic_algorithms(True)
