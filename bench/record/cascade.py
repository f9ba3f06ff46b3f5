"""Cascades: an attack receives only the readings with an example that no earlier attack reconstructed.

Victims and random draws depend only on the cell, so an attack's result on a reading does not depend on earlier attacks.
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
    """Return the numbers of the readings (observed updates) that the attack `cell` (an experiment) must attack. In a
    cascade (attacks in a fixed order), these are the readings with an example that no earlier attack reconstructed;
    outside cascades, all readings. The earlier attacks' records are in the run folder `run`. Raises `BenchError` for an
    earlier attack without a record."""
    return left_by(cell, (_of_run(run, before) for before in cell.after))


def left_by(cell: AttackCell, earlier: Iterable[Leaked]) -> tuple[int, ...]:
    """Return the numbers of the readings (observed updates) of `cell` with an example that no earlier cell (experiment)
    of the cascade reconstructed. `earlier` has a dictionary for each earlier cell, from `came_back`: (reading, example)
    → True if reconstructed."""
    leaked: dict[tuple[int, int], bool] = {}
    for each in earlier:
        for example, success in each.items():
            leaked[example] = success or leaked.get(example, False)
    open_ = {number for (number, _), success in leaked.items() if not success}
    attacked = {number for number, _ in leaked}
    return tuple(n for n in range(cell.readings) if n in open_ or n not in attacked)


def came_back(record: Record) -> Leaked:
    """Return which true examples an attack reconstructed, by the attack's record: (reading, example) → True or False;
    empty for a record without a result."""
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
    return came_back(read(path))
