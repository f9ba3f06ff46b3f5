"""Trainings of a defense with the best learning rate of a grid."""

from collections.abc import Collection, Mapping, Sequence

from bench.calibration.measure import Federation, Runner, accuracy_of, training_cells
from bench.cell import Entry, TrainingCell
from bench.matrix.expand import FactsOf, PlannedCell
from bench.matrix.read import Matrix
from bench.record.schema import Record

SELECTED = 100  # seed of the trainings that choose the learning rate
FINALISTS = 2
SHORT = 3  # the first trainings take a third of the rounds


def trainings(
    matrix: Matrix,
    federation: Federation,
    defenses: Sequence[Entry],
    seeds: Collection[int],
    facts: FactsOf,
    run: Runner,
    *,
    halfway: bool = False,
    checkpoints: Collection[int] = (),
) -> list[tuple[Record, ...]]:
    """Choose the best learning rate for each of `defenses`, and train with this rate under each of `seeds`. Return the
    records (results) of these trainings, a tuple for each defense. Each training has a checkpoint halfway.

    The choice is by test accuracy under the seed `SELECTED`, in two steps, and starts from the same learning rates for
    every defense. First all rates are tried, each for a third of the rounds. Then the `FINALISTS` best rates are tried
    for all rounds, and the best of these is chosen.

    - `matrix`, `federation`: the calibration's matrix; the trainings of a data set and model in it.
    - `facts`: function that returns a data set's properties.
    - `run`: function that runs cells (experiments) and returns their records.
    - `halfway`: True to stop the trainings under `seeds` halfway.
    - `checkpoints`: further rounds after which weights are saved."""
    rounds = federation.trainings[0]["rounds"]
    rates = {row["federated"].rate for row in federation.trainings}
    chosen: list[Collection[float]] = [rates] * len(defenses)
    for length, count in ((max(1, rounds // SHORT), FINALISTS), (rounds, 1)):
        cells = [
            training_cells(matrix, _of_rates(federation, each), defense, facts, rounds=length, seed=SELECTED)
            for each, defense in zip(chosen, defenses, strict=True)
        ]
        records = run([cell for group in cells for cell in group])
        chosen = [_best(records, group, count) for group in cells]
    half = rounds // 2
    kept = {"checkpoints": tuple(sorted({half, *checkpoints}))} | ({"until_round": max(1, half)} if halfway else {})
    cells = [
        tuple(
            cell
            for seed in seeds
            for cell in training_cells(matrix, _of_rates(federation, each), defense, facts, seed=seed, **kept)
        )
        for each, defense in zip(chosen, defenses, strict=True)
    ]
    records = run([cell for group in cells for cell in group])
    return [tuple(records[item.cell.id] for item in group) for group in cells]


def _best(records: Mapping[str, Record], cells: Sequence[PlannedCell], count: int) -> tuple[float, ...]:
    ranked = sorted(cells, key=lambda item: -accuracy_of(records[item.cell.id]))
    return tuple(item.cell.federated.rate for item in ranked[:count] if isinstance(item.cell, TrainingCell))


def _of_rates(federation: Federation, rates: Collection[float]) -> tuple[Mapping[str, object], ...]:
    return tuple(row for row in federation.trainings if row["federated"].rate in rates)
