"""Protocol of a worker pool for the dispatch loop (`bench.sweep.dispatch`)."""

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
    """Loss of a worker with its cell; `retry`: another worker may try the cell."""

    reason: str
    retry: bool = True


@dataclass(frozen=True, slots=True)
class CellReturned:
    """A worker returns its cell: the machine is at fault."""


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """Departure of a worker without a cell."""


Event = TrainingProgress | Record | WorkerLost | CellReturned | WorkerGone


class WorkerPool(Protocol):
    """Named workers, a cell at a time each.  A record in an event is already on disk."""

    def workers(self) -> tuple[str, ...]:
        """Workers ready for cells."""

    def submit(self, worker: str, cell: AnyCell, *, demand: int, company: tuple[AnyCell, ...] = ()) -> None:
        """Let a worker answer a cell.  `demand`: cells ready to run, including this cell; `company`: next cells,
        open to a joint attack.
        """

    def events(self) -> list[tuple[str, Event]]:
        """Events by worker, after a wait; possibly empty after arrivals.

        Raises `BenchError` without any worker left.
        """

    def close(self) -> None:
        """Release the workers; running cells are lost."""


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """A pool to start, its description, and its number of workers, None if unknown."""

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
    """Run a cell to a writable record within the time limit; a worker beyond the limit ends itself."""
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
