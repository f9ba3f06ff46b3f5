"""Time of a calibration: core seconds per interception point, and the time to expect from the shipped families."""

from collections.abc import Iterable, Sequence

from bench.calibration.measure import Federation
from bench.calibration.run import Listener
from bench.cell import AttackCell
from bench.record.schema import Record
from bench.record.tradeoff import Row


def seconds_of(listener: Listener, listeners: Iterable[Listener], records: Iterable[Record]) -> float:
    """Return the core seconds that a calibration spent on a defense family at an interception point: the attacks at
    this point, and an equal share of the family's trainings.

    - `listener`: measurements of the family at the point.
    - `listeners`: measurements of all families at all points; a family's points share its trainings equally.
    - `records`: records (results of cells) of the whole calibration, with the time of each cell."""
    family = listener.defense.name
    sharing = len({each.point for each in listeners if each.defense.name == family and each.absent is None})
    own = [record for record in records if record.cell.defense.name == family]
    attacks = [r for r in own if isinstance(r.cell, AttackCell) and r.cell.point == listener.point]
    trainings = [record for record in own if not isinstance(record.cell, AttackCell)]
    attacked, trained = (sum(record.cost.cpu_seconds for record in each) for each in (attacks, trainings))
    return round(attacked + trained / max(1, sharing), 1)


def expected(
    points: Sequence[str], rows: Iterable[Row], federation: Federation, workers: int, *, has_strength: bool
) -> str:
    """Return the time to expect for the calibration of a defense family at the interception points `points`, as text:
    the range over comparable families in earlier calibrations. A family that leaks at every strength has no trainings,
    and is quick.

    - `rows`: rows of the shipped trade-off, each a family at a point with its time; rows of another federation, without
      a time, or with other measured quantities are left out.
    - `federation`: data set, model and attacks of the planned calibration.
    - `workers`: number of processes.
    - `has_strength`: True if the family declares a strength parameter."""
    reconstructs = any(question == "reconstructed" for question, _ in federation.attacks)
    here = [
        row
        for row in rows
        if (row.reconstructed is not None) == reconstructs
        and (row.dataset, row.model) == (federation.dataset, federation.model)
        and row.seconds is not None
        and (row.parameter is not None) == has_strength
    ]
    if not has_strength:
        return _range(points, here, workers) or "time unknown"
    quick, whole = (
        _range(points, [row for row in here if bool(row.at_levels) == trained], workers) for trained in (False, True)
    )
    if whole is None:
        return "time unknown"
    return f"{whole}, or {quick} if it leaks at every strength" if quick else whole


def _range(points: Sequence[str], rows: Iterable[Row], workers: int) -> str | None:
    known: dict[str, list[float]] = {point: [] for point in points}
    for row in rows:
        known.setdefault(row.point, []).append(row.seconds or 0.0)
    if not points or not all(known[point] for point in points):
        return None
    least, most = (sum(pick(known[point]) for point in points) / workers / 60 for pick in (min, max))
    span = f"{least:.0f} to {most:.0f}" if round(least) != round(most) else f"about {most:.0f}"
    return f"{span} minutes on {workers} process{'es' if workers > 1 else ''}"
