"""Cascades: an attack of one is given the readings that the cells before it left.

A reading is left while some example of it has come back to none of them.  Its victims and draws are those of the whole
cell, so that what an attack makes of a reading does not depend on who was there before.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from bench.cell import AttackCell
from bench.errors import BenchError, RecordError
from bench.record.schema import Record
from bench.record.store import read, record_path

NOTHING_LEFT = "nothing was left to attack: every example had come back before"
Leaked = Mapping[tuple[int, int], bool]  # (reading, example) → whether it came back


def left(cell: AttackCell, run: Path) -> tuple[int, ...]:
    """The readings of which some example has not come back, by number; all of them for a cell in no cascade.

    Raises `BenchError` where a cell before it has no record.
    """
    return left_by(cell, (_of_run(run, before) for before in cell.after))


def left_by(cell: AttackCell, earlier: Iterable[Leaked]) -> tuple[int, ...]:
    """The same, from what came back to each of the cells before it."""
    leaked: dict[tuple[int, int], bool] = {}
    for each in earlier:
        for example, success in each.items():
            leaked[example] = success or leaked.get(example, False)
    open_ = {number for (number, _), success in leaked.items() if not success}
    attacked = {number for number, _ in leaked}
    return tuple(n for n in range(cell.readings) if n in open_ or n not in attacked)


def came_back(record: Record) -> Leaked:
    """What leaked to a cell: nothing where it crashed, or could not be run."""
    readings = () if record.attack is None else record.attack.numbered()
    return {(n, at): example.success for n, reading in readings for at, example in enumerate(reading.examples)}


def _of_run(run: Path, cell_id: str) -> Leaked:
    path = record_path(run, cell_id)
    try:
        written = path.stat()
        return _of_file(path, written.st_mtime_ns, written.st_size)
    except (OSError, RecordError):
        raise BenchError(
            f"cell {cell_id[:8]}, which comes before it in its cascade, has no record in {run}; run the matrix again"
        ) from None


@lru_cache(maxsize=4096)  # planning asks for every cell of a cascade
def _of_file(path: Path, modified: int, size: int) -> Leaked:
    del modified, size
    return came_back(read(path))
