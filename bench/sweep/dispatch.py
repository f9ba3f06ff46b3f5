"""The loop that feeds workers: every cell of a schedule to a record, whatever happens to its worker."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.answer.run import Place, Step, answering, environment
from bench.cell import AnyCell
from bench.record.store import Record, write
from bench.sweep.pool import Crew, Lost
from bench.sweep.scheduler import Agenda

TRIES = 2  # of a cell that its worker does not survive: the first may have died of something else


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What a run tells: a cell begins at a worker, a training is so far, a record is on disk."""

    started: Callable[[AnyCell, str], None] = lambda cell, worker: None
    stepped: Callable[[AnyCell, Step], None] = lambda cell, step: None
    finished: Callable[[Record], None] = lambda record: None


def dispatch(
    agenda: Agenda,
    crew: Crew,
    place: Place,
    watch: Watch,
    learn: Callable[[AnyCell, Mapping[str, Any]], None],
) -> None:
    """Have the crew answer all that is on the agenda.

    `learn` is told what each cell cost.  Raises what `crew.news` raises, with every finished cell on disk.
    """
    busy: dict[str, AnyCell] = {}
    lost_with: Counter[str] = Counter()
    while True:
        for worker in crew.members():
            if worker not in busy and (cell := agenda.take(worker)) is not None:
                busy[worker] = cell
                watch.started(cell, worker)
                crew.give(worker, cell, demand=len(busy) + agenda.ready)
        if not busy and agenda.empty:
            return
        for worker, news in crew.news():
            if isinstance(news, Step):
                watch.stepped(busy[worker], news)
                continue
            if isinstance(news, Record):
                cell = busy.pop(worker)
                learn(cell, news.cost)
                agenda.settle(cell)
                watch.finished(news)
                continue
            agenda.leave(worker)
            cell_ = busy.pop(worker, None)
            if cell_ is None:
                continue
            if isinstance(news, Lost):
                lost_with[cell_.id] += 1
                if not news.again or lost_with[cell_.id] >= TRIES:
                    record = lost(cell_, place, news.reason)
                    write(place.run, record)
                    agenda.settle(cell_)
                    watch.finished(record)
                    continue
            agenda.again(cell_)


def lost(cell: AnyCell, place: Place, reason: str, status: Any = "crashed") -> Record:
    """The record of a cell that could not run."""
    return Record(
        id=cell.id, status=status, reason=reason, cell=cell.model_dump(mode="json"),
        source=answering(cell, place.run), summary={}, victims=[], environment=environment(place), cost={},
    )  # fmt: skip
