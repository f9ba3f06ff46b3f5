"""Time of a calibration: core seconds for each listener, and the time to expect from the shipped families."""

from collections.abc import Iterable, Sequence

from bench.calibration.measure import Federation
from bench.calibration.run import Listener
from bench.cell import AttackCell
from bench.record.schema import Record
from bench.record.tradeoff import Row


def seconds_of(listener: Listener, listeners: Iterable[Listener], records: Iterable[Record]) -> float:
    """Return the core seconds of the calibration for one listener: its attacks, and its share of the family's
    trainings.

    - `listeners`: all listeners of the calibration; those of one family share the trainings equally.
    - `records`: records of the calibration."""
    family = listener.defense.name
    sharing = sum(each.defense.name == family and each.absent is None for each in listeners)
    own = [record for record in records if record.cell.defense.name == family]
    attacks = [r for r in own if isinstance(r.cell, AttackCell) and r.cell.point == listener.point]
    trainings = [record for record in own if not isinstance(record.cell, AttackCell)]
    attacked, trained = (sum(record.cost.cpu_seconds for record in each) for each in (attacks, trainings))
    return round(attacked + trained / max(1, sharing), 1)


def expected(points: Sequence[str], rows: Iterable[Row], federation: Federation, workers: int) -> str:
    """Return the time to expect for listeners at these interception `points`, in words: the range over measured
    families.

    - `rows`: measured families; rows of another federation and rows without a time are left out.
    - `workers`: number of processes."""
    known: dict[str, list[float]] = {}
    for row in rows:
        if (row.dataset, row.model) == (federation.dataset, federation.model) and row.seconds is not None:
            known.setdefault(row.point, []).append(row.seconds)
    if not points or any(point not in known for point in points):
        return "time: unknown, no shipped family has figures here"
    least, most = (sum(pick(known[point]) for point in points) / workers / 60 for pick in (min, max))
    return (
        f"time: {least:.0f} to {most:.0f} minutes on {workers} processes, as the shipped families; the quick families "
        "leak at every strength"
    )
