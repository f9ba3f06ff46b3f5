"""What a pool of workers promises to the loop that feeds it (`bench.sweep.dispatch`)."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

from bench.answer.context import Memory, RunContext, TrainingProgress
from bench.answer.place import HERE, Here
from bench.answer.run import run
from bench.answer.train import OnProgress
from bench.cell import AnyCell
from bench.errors import MALFORMED
from bench.isolation.isolation import GRACE, Isolation
from bench.isolation.process import exit_after, trace_path
from bench.record.schema import Record
from bench.record.store import to_json
from bench.sanitize import first_line
from bench.sweep.checked import broken


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

    def submit(self, worker: str, cell: AnyCell, *, demand: int, company: tuple[AnyCell, ...] = ()) -> None:
        """Let a worker answer a cell; `demand` cells could run at this moment, this one among them, and those of
        `company` come next: it may attack them together."""

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


def run_within_limits(
    cell: AnyCell,
    context: RunContext,
    memory: Memory,
    on_progress: OnProgress,
    place: Here | Isolation = HERE,
    company: Sequence[AnyCell] = (),
) -> Record:
    """Run one cell to a record that can be written, within the time limit; a worker that passes it ends itself."""
    limit = context.time_limit
    if limit is not None and place.concerns(cell):
        limit += GRACE  # the plug-ins' process knows better where it was
    with nullcontext() if limit is None else exit_after(limit, trace_path(context.run, cell.id)):
        record = run(cell, context, memory, on_progress, place, company)
        record = replace(record, broken=broken(cell, place))
    try:
        to_json(record)
    except MALFORMED as error:  # a plug-in's value of another kind, in notes or marks
        reason = f"what is to be recorded is no JSON: {first_line(error)}"
        return replace(record, status="crashed", reason=reason, result=None)
    return record
