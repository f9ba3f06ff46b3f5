"""The interface between worker pools and the dispatch loop (`bench.sweep.dispatch`)."""

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
    """Event in a worker pool: a worker (process or machine) ended before its cell (experiment) had a record, such as a
    killed process. The cell may run again elsewhere."""

    reason: str
    """Reason for the loss."""
    retry: bool = True
    """True if another worker may try the cell."""


@dataclass(frozen=True, slots=True)
class CellReturned:
    """Event in a worker pool: a worker on a faulty machine gives back its cell (experiment) without a record; the cell
    runs on another worker, and the fault does not count against the cell."""


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """Event in a worker pool: a worker left the pool while it had no cell (experiment)."""


Event = TrainingProgress | Record | WorkerLost | CellReturned | WorkerGone


class WorkerPool(Protocol):
    """Set of named workers (processes or machines) that run cells (experiments), at most one cell each. The dispatch
    loop submits cells and waits for events. The record in an event is already on disk."""

    def workers(self) -> tuple[str, ...]:
        """Return the names of the workers that accept cells (experiments)."""

    def submit(self, worker: str, cell: AnyCell, *, demand: int, company: tuple[AnyCell, ...] = ()) -> None:
        """Give a cell (experiment) to a worker.

        - `demand`: number of cells that could run now, including this cell; if few cells could run, a pool may give the
          cell more threads.
        - `company`: the worker's next cells, which may be attacked in the same batch."""

    def events(self) -> list[tuple[str, Event]]:
        """Wait for events; return pairs (worker's name, event), or an empty list. Raises `BenchError` if no worker is
        left."""

    def close(self) -> None:
        """Release the workers; running cells (experiments) are lost."""


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """Description of a worker pool that `start` starts only if cells (experiments) must run; until then, messages show
    the pool's name and size."""

    start: Callable[[], WorkerPool]
    """Function that starts the pool."""
    description: str
    """The pool in words."""
    jobs: int | None
    """Number of workers; None: unknown."""


def run_within_limits(
    cell: AnyCell,
    context: RunContext,
    memory: Memory,
    on_progress: OnProgress,
    place: Here | Isolation = HERE,
    company: Sequence[AnyCell] = (),
) -> Record:
    """Run a cell (experiment) in this worker process, within the time limit, and return its record.

    - `context`: the run's folders, device and limits. Beyond `context.time_limit`, this process ends without a record,
      and the pool reports `WorkerLost`. A cell with plug-in code has a reserve: the plug-in process ends first, and the
      record says `crashed`.
    - `memory`: the worker's cache between cells.
    - `on_progress`: called after every training round.
    - `place`: `HERE` runs the cell in this process; an `Isolation` runs plug-in code in separate processes.
    - `company`: the next cells, which may share the attack's batch.

    A result that JSON cannot hold becomes a crashed record."""
    limit = context.time_limit
    if limit is not None and place.concerns(cell):
        limit += GRACE  # lets the plug-ins' process report first: it knows where it hung
    with nullcontext() if limit is None else exit_after(limit, trace_path(context.run, cell.id)):
        record = run(cell, context, memory, on_progress, place, company)
        record = replace(record, broken=broken(cell, place))
    try:
        to_json(record)
    except MALFORMED as error:  # a plug-in's value of another type, in notes or marks
        reason = f"what is to be recorded is no JSON: {first_line(error)}"
        return replace(record, status="crashed", reason=reason, result=None)
    return record
