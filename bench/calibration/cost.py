"""Time of a calibration: core seconds per interception point, and the time to expect from the shipped families."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from bench.calibration.later import TRAINED
from bench.calibration.measure import (
    TUNING,
    Federation,
    Question,
    at,
    declared_class,
    reading_cells,
    trained_readings,
    training_cells,
)
from bench.calibration.run import Listener
from bench.calibration.score import SCORED
from bench.calibration.trainings import FINALISTS, SHORT
from bench.cell import AnyCell, AttackCell, Entry
from bench.matrix.expand import FactsOf, PlannedCell
from bench.matrix.read import Matrix
from bench.record.schema import Record
from bench.record.tradeoff import Row

# least and most strengths of the shipped families that reach a level: in the first round, at trained weights, scored
_STRENGTHS: Mapping[Question, tuple[tuple[int, int, int], tuple[int, int, int]]] = {
    "named": ((5, 2, 3), (8, 6, 5)),
    "reconstructed": ((5, 1, 1), (8, 1, 1)),
}


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
) -> str | None:
    """Return the time to expect for the calibration of a defense family at the interception points `points`, as text:
    the range over comparable families in earlier calibrations; None without comparable families. A family that leaks at
    every strength has no trainings, and is quick.

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
        return _range(points, here, workers)
    leaking, trained = ([row for row in here if bool(row.at_levels) == reached] for reached in (False, True))
    quick = _range(points, leaking, workers)
    reached_at = {row.point for row in trained}
    # where every family leaks, a family that reaches a level at another point has the time of a leaking family
    trained += [row for row in leaking if row.point not in reached_at]
    whole = _range(points, trained, workers) if reached_at & {*points} else None
    if whole is None:
        return None
    return f"{whole}, or {quick} if it leaks at every strength" if quick else whole


def estimated(
    points: Sequence[str],
    matrix: Matrix,
    federation: Federation,
    defense: Entry,
    facts: FactsOf,
    seconds: Callable[[AnyCell], float],
    workers: int,
) -> str:
    """Return the time to expect for the calibration of a defense family without comparable families (`expected`), as
    text: the number of cells (experiments), from the least to the most strengths of a calibration, times the seconds of
    a cell by formula.

    - `points`: interception points of the family's attacks.
    - `matrix`, `federation`: the calibration's matrix; the attacks and trainings of a data set and model in it.
    - `defense`: the defense family.
    - `facts`: function that returns a data set's properties.
    - `seconds`: function that returns the expected run time of a cell on a core.
    - `workers`: number of processes."""
    has_strength = declared_class(defense.name).strength is not None
    middle = at(defense, 0.5 if has_strength else None)

    def of(cells: Iterable[PlannedCell]) -> float:
        return sum(seconds(item.cell) for item in cells)

    rounds: int = federation.trainings[0]["rounds"]
    short, whole = (
        of(training_cells(matrix, federation.trainings, middle, facts, rounds=number))
        for number in (max(1, rounds // SHORT), rounds)
    )
    one = whole / len(federation.trainings)
    choice = short + one * FINALISTS  # of the learning rate
    training = choice + one * len(SCORED)
    quick = training  # the undefended trainings
    least = most = training if has_strength else 2 * training
    for (question, point), rows in federation.attacks.items():
        if point not in points:
            continue
        first = of(reading_cells(matrix, rows, middle, TUNING, facts))
        trained = first * trained_readings(rows[0]) / (len(rows) * int(rows[0]["readings"]))  # of one training
        scored = first + len(SCORED) * trained
        combined = 0.0  # all updates of a client, at L1
        if question == "named" and federation.uploads > 1:
            combined = first * len(SCORED) * federation.uploads / len(rows)
        raised = choice + len(TRAINED) * (one / 2 + trained)  # these trainings stop halfway
        if not has_strength:
            least, most = (each + first + scored + combined for each in (least, most))
            continue
        ends = [
            measured * first + later * raised + levels * (training + scored) + combined
            for measured, later, levels in _STRENGTHS[question]
        ]
        quick, least, most = quick + _STRENGTHS[question][0][0] * first, least + ends[0], most + ends[1]
    leaking = f", or {_minutes(quick, quick, workers, '')} if it leaks at every strength" if has_strength else ""
    return f"roughly {_minutes(least, most, workers, '')}{leaking}"


def processes(count: int) -> str:
    """Return a number of processes, `count`, as text."""
    return f"{count} process{'es' if count > 1 else ''}"


def _range(points: Sequence[str], rows: Iterable[Row], workers: int) -> str | None:
    known: dict[str, list[float]] = {point: [] for point in points}
    for row in rows:
        known.setdefault(row.point, []).append(row.seconds or 0.0)
    if not points or not all(known[point] for point in points):
        return None
    least, most = (sum(pick(known[point]) for point in points) for pick in (min, max))
    return _minutes(least, most, workers)


def _minutes(least: float, most: float, workers: int, about: str = "about ") -> str:
    """Return the range of core seconds as minutes, in words."""
    least, most = least / workers / 60, most / workers / 60
    span = f"{least:.0f} to {most:.0f}" if round(least) != round(most) else f"{about}{most:.0f}"
    return f"{'under a minute' if most < 0.5 else f'{span} minutes'} on {processes(workers)}"
