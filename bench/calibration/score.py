"""Leakage and accuracy of a defense at its calibrated strengths, measured on other victims and seeds than the
calibration."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.calibration.measure import SCORING, Federation, Runner, at, combined_cells, reading_cells, trained_cells
from bench.calibration.run import Listener
from bench.calibration.trainings import trainings
from bench.cell import Entry
from bench.matrix.expand import FactsOf, PlannedCell
from bench.matrix.read import Matrix
from bench.record.schema import Record

SCORED = (101, 102, 103, 104)  # seeds of the trainings whose accuracy counts
COMBINED = ("L1", "point")  # levels at which an attacker with all updates of a client is measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Records (results of cells) for a defense at a calibrated strength: trainings, and attacks on scoring victims,
    which are not used in the calibration."""

    listener: Listener
    """The defense family's measurements at an interception point, from which the strength was calibrated."""
    level: str
    """Name of the level (bound on leaked examples) that the strength meets, such as `L1`; `point` for a family without
    a strength."""
    defense: Entry
    """The defense with its parameters, at this strength."""
    readings: tuple[Record, ...]
    """Attacks on the scoring victims in the first round."""
    trainings: tuple[Record, ...]
    """Trainings with this defense and its best learning rate, one per seed."""
    trained: tuple[Record, ...]
    """Attacks on the scoring victims halfway through these trainings; empty if a training diverged."""
    updates: tuple[Record, ...]
    """Attacks on the scoring victims with all updates of a client in these trainings; empty for other levels than `L1`
    and `point`, if a client sends a single update, and if a training diverged."""
    pictured: Record | None
    """An attack that reconstructs scoring victims in the first round, for a picture; None if the matrix has no such
    attack at the interception point, and for the scores of `L3`."""


def undefended(matrix: Matrix, federation: Federation, facts: FactsOf, run: Runner) -> tuple[Record, ...]:
    """Run the undefended trainings, for comparison with the defended trainings, and return their records (results), one
    per seed. The learning rate is the best of those in the matrix.

    - `matrix`, `federation`: the calibration's matrix; the trainings of a data set and model in it.
    - `facts`: function that returns a data set's properties.
    - `run`: function that runs cells (experiments) and returns their records."""
    return trainings(matrix, federation, [Entry(name="none")], SCORED, facts, run)[0]


def calibrated_strengths(listeners: Iterable[Listener]) -> tuple[tuple[Listener, str, Entry], ...]:
    """List the defenses whose leakage and accuracy are to be measured after a calibration: (listener, level, defense at
    the calibrated strength). There is an item for each of `listeners` (measurements at an interception point) and each
    level for which a strength exists. A family without a strength parameter has a single item per listener, with the
    level `point`."""
    found: list[tuple[Listener, str, Entry]] = []
    for listener in listeners:
        if listener.absent is None and None in listener.strengths:
            found.append((listener, "point", listener.defense))
        for name, result in listener.calibrated.items():
            if result.position is not None:
                found.append((listener, name, at(listener.defense, result.position)))
    return tuple(found)


def scored(
    matrix: Matrix,
    federation: Federation,
    strengths: Sequence[tuple[Listener, str, Entry]],
    facts: FactsOf,
    run: Runner,
) -> tuple[Score, ...]:
    """Measure leakage and accuracy at calibrated strengths, on new victims and seeds: run attacks and trainings, and
    return their records (results) for each strength.

    - `matrix`, `federation`: the calibration's matrix; the attacks and trainings of a data set and model in it.
    - `strengths`: (listener, level, defense at the strength), from `calibrated_strengths`.
    - `facts`: function that returns a data set's properties.
    - `run`: function that runs cells (experiments) and returns their records."""
    readings = [
        reading_cells(matrix, listener.attacks(federation), defense, SCORING, facts)
        for listener, _, defense in strengths
    ]
    pictured = [
        picture_cells(matrix, federation, listener.point, defense, facts) if listener.question == "named" else ()
        for listener, _, defense in strengths
    ]
    records = dict(run([cell for cells in (*readings, *pictured) for cell in cells]))
    rounds, defenses = federation.upload_rounds, [defense for _, _, defense in strengths]
    trained = trainings(matrix, federation, defenses, SCORED, facts, run, checkpoints=rounds)
    halfway = [
        trained_cells(matrix, listener.attacks(federation), defense, each, SCORING, facts)
        for (listener, _, defense), each in zip(strengths, trained, strict=True)
    ]
    combined = [
        combined_cells(matrix, listener.attacks(federation), defense, each, rounds, facts)
        if listener.question == "named" and level in COMBINED
        else ()
        for (listener, level, defense), each in zip(strengths, trained, strict=True)
    ]
    records |= run([cell for cells in (*halfway, *combined) for cell in cells])
    return tuple(
        Score(
            listener=listener,
            level=level,
            defense=defense,
            readings=tuple(records[item.cell.id] for item in attacked),
            trainings=each,
            trained=tuple(records[item.cell.id] for item in later),
            updates=tuple(records[item.cell.id] for item in together),
            pictured=next((records[item.cell.id] for item in shown), None),
        )
        for (listener, level, defense), attacked, each, later, together, shown in zip(
            strengths, readings, trained, halfway, combined, pictured, strict=True
        )
    )


def picture_cells(
    matrix: Matrix, federation: Federation, point: str, defense: Entry, facts: FactsOf
) -> tuple[PlannedCell, ...]:
    """Return the attack cell (experiment) whose reconstructions a picture shows: the first of the cells that score
    reconstructed examples at this defense's strength. Empty if the federation has no attack that reconstructs.

    - `matrix`, `federation`: the calibration's matrix; the attacks and trainings of a data set and model in it.
    - `point`: name of the interception point.
    - `defense`: the defense, with its strength parameter set.
    - `facts`: function that returns a data set's properties."""
    attacks = federation.attacks.get(("reconstructed", point), ())
    return reading_cells(matrix, attacks, defense, SCORING, facts)[:1] if attacks else ()
