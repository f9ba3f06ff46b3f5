"""Workers of this process: a pool that follows a script, and a scheduler's cells on a made-up clock."""

from collections.abc import Sequence

from tests.cells import MEMORY

import bench.answer.run as answer
from bench.answer.context import RunContext
from bench.cell import AnyCell
from bench.record.store import write
from bench.sweep.pool import Event
from bench.sweep.scheduler import Scheduler


class ScriptedPool:
    """A pool of this process itself (`bench.sweep.pool.WorkerPool`), whose workers come, go and lie by a script of
    events; with none left they answer."""

    def __init__(self, context: RunContext, script: Sequence[tuple[str, Event]] = ()) -> None:
        self._context, self._script, self._cells = context, list(script), dict[str, AnyCell]()

    def workers(self) -> tuple[str, ...]:
        return ("a", "b")

    def submit(self, worker: str, cell: AnyCell, *, demand: int, company: tuple[AnyCell, ...] = ()) -> None:
        self._cells[worker] = cell

    def events(self) -> list[tuple[str, Event]]:
        if self._script:
            worker, event = self._script.pop(0)
            self._cells.pop(worker, None)
            return [(worker, event)]
        worker, cell = next(iter(self._cells.items()))
        del self._cells[worker]
        record = answer.run(cell, self._context, MEMORY)
        write(self._context.run, record)
        return [(worker, record)]

    def close(self) -> None:
        pass


def simulated(scheduler: Scheduler, workers: int, seconds: dict[str, float]) -> list[tuple[float, str, AnyCell]]:
    """Each worker takes `seconds` for a cell; (start, worker, cell) in order."""
    clock, busy, starts = 0.0, dict[str, tuple[float, AnyCell]](), list[tuple[float, str, AnyCell]]()
    while True:
        for name in map(str, range(workers)):
            if name not in busy and (cell := scheduler.take(name)) is not None:
                busy[name] = (clock + seconds[cell.id], cell)
                starts.append((clock, name, cell))
        if not busy:
            assert scheduler.empty
            return starts
        name = min(busy, key=lambda worker: busy[worker][0])
        clock, cell = busy.pop(name)
        scheduler.settle(cell)
