"""The dispatch loop: every cell in a schedule becomes a record, even if its worker dies."""

from collections import Counter
from collections.abc import Callable, Sequence

from bench.answer.context import RunContext, TrainingProgress
from bench.answer.run import record_without_result
from bench.cell import AnyCell
from bench.record.schema import Cost, Record
from bench.record.store import write
from bench.sweep.observer import Observer
from bench.sweep.pool import WorkerLost, WorkerPool
from bench.sweep.scheduler import Scheduler

TRIES = 2  # for a cell whose worker dies: the first death may have another cause


def dispatch(
    scheduler: Scheduler,
    pool: WorkerPool,
    context: RunContext,
    observers: Sequence[Observer],
    learn: Callable[[AnyCell, Cost], None],
) -> None:
    """Main loop of a run: give the cells (experiments) of the `scheduler` to the workers of the `pool`, and pass events
    on, until each cell has a record.

    - `context`: the run's folders, device and limits.
    - `observers`: receive every event.
    - `learn`: function that receives every cell's cost, for later estimates.

    Errors of `pool.events` are raised; the records of finished cells are then on disk."""
    running: dict[str, AnyCell] = {}
    losses: Counter[str] = Counter()

    def settle(cell: AnyCell, record: Record) -> None:
        scheduler.settle(cell)
        for observer in observers:
            observer.on_record(record)

    while True:
        for worker in pool.workers():
            if worker not in running and (cell := scheduler.take(worker)) is not None:
                running[worker] = cell
                for observer in observers:
                    observer.on_start(cell, worker)
                company = scheduler.queue(worker)
                pool.submit(worker, cell, demand=len(running) + scheduler.ready, company=company)
        if not running and scheduler.empty:
            return
        for worker, event in pool.events():
            if isinstance(event, TrainingProgress):
                for observer in observers:
                    observer.on_progress(running[worker], event)
            elif isinstance(event, Record):
                answered = running.pop(worker)
                learn(answered, event.cost)
                settle(answered, event)
            else:
                scheduler.remove(worker)
                dropped = running.pop(worker, None)
                if dropped is None:
                    continue
                if isinstance(event, WorkerLost):
                    losses[dropped.id] += 1
                    if not event.retry or losses[dropped.id] >= TRIES:
                        record = record_without_result(dropped, context, "crashed", event.reason)
                        write(context.run, record)
                        settle(dropped, record)
                        continue
                scheduler.retry(dropped)
