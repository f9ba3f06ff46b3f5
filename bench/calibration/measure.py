"""Cells (experiments) that measure a defense at a strength, and their records as counts per weight seed."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from bench.answer.victims import HALVES
from bench.calibration.curve import Counts
from bench.cell import AttackCell, CheckpointWeights, Entry, Federated, TrainingCell
from bench.defenses.base import Defense
from bench.defenses.strength import at_strength
from bench.matrix.expand import FactsOf, PlannedCell, expand
from bench.matrix.read import Combination, Matrix
from bench.matrix.typed import written
from bench.parameters import parameters, values
from bench.points import POINTS
from bench.record.schema import Record
from bench.registry import entries as registry

# Runs cells that have no valid record yet, and returns cell id → record for all.
Runner = Callable[[Sequence[PlannedCell]], Mapping[str, Record]]

TUNING, SCORING = HALVES
Question = Literal["named", "reconstructed"]
_LEAST_CHANCE = 0.005  # of reconstructed examples, for the curve: a guess without gradient reconstructs nothing
_MORE, _MOST_TRAINED = 4, 96  # readings at trained weights: few trainings have more readings each


@dataclass(frozen=True, slots=True, kw_only=True)
class Federation:
    """A federated setting with data set and model, in which a calibration measures leakage and accuracy of defenses."""

    dataset: str
    """Name of the data set."""
    model: str
    """Name of the model; `, labels unknown` follows if the attacker does not know the labels."""
    attacks: Mapping[tuple[Question, str], tuple[Combination, ...]]
    """(measured quantity, interception point) → attacks from the calibration's matrix, one for each weight seed. The
    quantity is `named` (examples that the attack picks among granted candidates) or `reconstructed`."""
    trainings: tuple[Combination, ...]
    """Trainings from the calibration's matrix, one for each learning rate."""

    @property
    def points(self) -> tuple[str, ...]:
        """Names of the interception points (attacker's positions) of the attacks, from inside the client outwards."""
        attacked = {point for _, point in self.attacks}
        return tuple(point for point in POINTS if point in attacked)

    @property
    def uploads(self) -> int:
        """Expected number of updates that a client sends in a training, rounded up: rounds times the share of clients
        in a round. The bound by ε on all of a client's updates depends on this number."""
        row = self.trainings[0]
        setting: Federated = row["federated"]
        rounds: int = row["rounds"]
        return math.ceil(rounds * setting.per_round / setting.clients)

    @property
    def upload_rounds(self) -> tuple[int, ...]:
        """Rounds in which a client with `uploads` updates takes part, at equal distances, in ascending order."""
        rounds: int = self.trainings[0]["rounds"]
        return tuple((2 * number + 1) * rounds // (2 * self.uploads) for number in range(self.uploads))

    @property
    def setting(self) -> str:
        """The federated setting of the trainings in words."""
        row = self.trainings[0]
        setting: Federated = row["federated"]
        return (
            f"{setting.clients} clients, {setting.per_round} per round, {setting.client_examples} examples each, "
            f"batch {setting.batch}, {setting.algorithm} with {setting.steps} steps, {row['rounds']} rounds, "
            f"{row['model']}"
        )


def federations(matrix: Matrix) -> tuple[Federation, ...]:
    """Return the federations in a calibration's `matrix`: groups of attacks and trainings with the same data set, model
    and federated setting; only the learning rate may differ."""
    attacks: dict[str, dict[tuple[Question, str], list[Combination]]] = {}
    trainings: dict[str, list[Combination]] = {}
    for row in matrix.attacks:
        question: Question = "named" if row["grants"].gallery else "reconstructed"
        attacks.setdefault(_key(row), {}).setdefault((question, row["point"]), []).append(row)
    for row in matrix.trainings:
        trainings.setdefault(_key(row), []).append(row)
    return tuple(
        Federation(
            dataset=_first(rows)["dataset"].name,
            model=_first(rows)["model"].name + ("" if _first(rows)["grants"].labels else ", labels unknown"),
            attacks={asked: tuple(each) for asked, each in rows.items()},
            trainings=tuple(trainings.get(key, ())),
        )
        for key, rows in attacks.items()
    )


def _first(attacks: Mapping[tuple[Question, str], Sequence[Combination]]) -> Combination:
    return next(iter(attacks.values()))[0]


def _key(row: Combination) -> str:
    federated: Federated = row["federated"]
    return f"{row['dataset']!r} {row['model']!r} {federated.model_copy(update={'rate': 1.0})!r}"


def at(defense: Entry, position: float | None) -> Entry:
    """Return a copy of `defense` (a name with parameters) with the strength parameter at `position` (0 weak, 1 strong);
    for None, `defense` unchanged."""
    if position is None:
        return defense
    return Entry(name=defense.name, params=values(at_strength(registry.of("defenses", defense), position)))


def declared_class(name: str) -> type[Defense]:
    """Return the registered class of the defense with this `name`."""
    entry: type[Defense] = registry.load("defenses", name)
    return entry


def typed(defense: Entry) -> str:
    """Return `defense` (a name with parameters) as typed after `--defense`, such as `gaussian:variance=0.03`, without
    parameters at their default. The strength parameter comes last, with four digits."""
    entry = declared_class(defense.name)
    declared = {each.name: each.default for each in parameters(entry)}
    params = [(key, value) for key, value in defense.params.items() if declared.get(key) != value]
    if entry.strength is not None:
        name = entry.strength.parameter
        params = [each for each in params if each[0] != name]
        if (value := defense.params.get(name)) is not None:
            params.append((name, value if isinstance(value, int) else f"{value:.4g}"))
    return written(defense.name, [f"{key}={value}" for key, value in params])


def listed(defenses: Iterable[Entry]) -> str:
    """Return the numbers of different strengths in `defenses` as text, such as `3 strengths of gaussian, 2 strengths of
    dp-sgd, sign`; the family `sign` has no strength parameter."""
    strengths: dict[str, set[str]] = {}
    for each in defenses:
        strengths.setdefault(each.name, set()).add(typed(each))
    return ", ".join(
        name
        if declared_class(name).strength is None
        else f"{len(each)} strength{'s' if len(each) > 1 else ''} of {name}"
        for name, each in strengths.items()
    )


def draw_of(position: float | None) -> int:
    """Return the number of the defense's random draw for the strength at `position` (0 weak, 1 strong); 0 for None.
    Strengths with separate noise have separate errors, so that a curve through all strengths is more precise."""
    return 0 if position is None else round(10_000 * position)


def reading_cells(
    matrix: Matrix, rows: Sequence[Combination], defense: Entry, half: str, facts: FactsOf, draw: int = 0
) -> tuple[PlannedCell, ...]:
    """Return the attack cells (experiments) that measure how much leaks behind a defense at an interception point, in
    the first round of a training.

    - `matrix`: the matrix of the calibration.
    - `rows`: the matrix's attacks at this point, one for each weight seed.
    - `defense`: the defense, with its strength parameter set.
    - `half`: the attacked half of the victims: "tuning" or "scoring". The halves have different weight seeds.
    - `facts`: function that returns a data set's properties.
    - `draw`: number of the defense's random draw, such as `draw_of` a strength."""
    shift = len(rows) if half == SCORING else 0
    changed = {"defense": defense, "victims": half, "draw": draw}
    attacks = tuple({**row, **changed, "seed": row["seed"] + shift} for row in rows)
    return expand(replace(matrix, attacks=attacks, trainings=()), facts)


def trained_cells(
    matrix: Matrix,
    rows: Sequence[Combination],
    defense: Entry,
    trainings: Sequence[Record],
    half: str,
    facts: FactsOf,
    draw: int = 0,
) -> tuple[PlannedCell, ...]:
    """Return the attack cells (experiments) that measure how much leaks behind a defense later in a training, at an
    interception point: a cell for each training with this defense, at the weights halfway. Empty if a training has no
    such checkpoint.

    - `matrix`: the matrix of the calibration.
    - `rows`: the matrix's attacks at this point.
    - `defense`: the defense, with its strength parameter set.
    - `trainings`: records (results) of trainings with this defense.
    - `half`: the attacked half of the victims: "tuning" or "scoring".
    - `facts`: function that returns a data set's properties.
    - `draw`: number of the defense's random draw, such as `draw_of` a strength."""
    attack = {**rows[0], "defense": defense, "victims": half, "draw": draw, "readings": trained_readings(rows[0])}
    halfway = {record.cell.rounds // 2 for record in trainings if isinstance(record.cell, TrainingCell)}
    return _checkpoint_cells(matrix, attack, trainings, tuple(halfway), facts)


def combined_cells(
    matrix: Matrix,
    rows: Sequence[Combination],
    defense: Entry,
    trainings: Sequence[Record],
    rounds: Sequence[int],
    facts: FactsOf,
) -> tuple[PlannedCell, ...]:
    """Return the attack cells (experiments) that measure how much leaks behind a defense to an attacker who combines
    all updates of a client in a training: a cell for each training with this defense. Each update is under its round's
    weights. The cells attack the scoring victims. Empty for a single update, and if a training lacks a checkpoint.

    - `matrix`: the matrix of the calibration.
    - `rows`: the matrix's attacks at an interception point.
    - `defense`: the defense, with its strength parameter set.
    - `trainings`: records (results) of trainings with this defense.
    - `rounds`: rounds in which the client takes part, in ascending order.
    - `facts`: function that returns a data set's properties."""
    if len(rounds) < 2:
        return ()
    attack = {**rows[0], "defense": defense, "victims": SCORING}
    return _checkpoint_cells(matrix, attack, trainings, rounds, facts)


def _checkpoint_cells(
    matrix: Matrix, attack: Combination, trainings: Sequence[Record], rounds: Sequence[int], facts: FactsOf
) -> tuple[PlannedCell, ...]:
    planned = []
    for record in trainings:
        if record.training is None or not {*rounds} <= {*record.training.checkpoints}:
            return ()
        (item,) = expand(replace(matrix, attacks=({**attack, "seed": record.cell.seed},), trainings=()), facts)
        weights = CheckpointWeights(training=record.id, round=rounds[0], further=tuple(rounds[1:]))
        planned.append(replace(item, cell=item.cell.model_copy(update={"weights": weights})))
    return tuple(planned)


def trained_readings(row: Combination) -> int:
    """Return the number of readings (observed updates) attacked at the trained weights of a training, for an attack
    `row` of the matrix."""
    # About half of the clients have a victim of the half as first example; a third is there for sure.
    clients: int = row["federated"].clients
    return min(_MOST_TRAINED, _MORE * int(row["readings"]), clients // 3)


def training_cells(
    matrix: Matrix, rows: Iterable[Combination], defense: Entry, facts: FactsOf, **changed: Any
) -> tuple[PlannedCell, ...]:
    """Return the training cells (experiments) with a defense, one for each training in `rows`.

    - `matrix`: the matrix of the calibration.
    - `rows`: trainings from this matrix, axis → value.
    - `defense`: the defense, with its parameters.
    - `facts`: function that returns a data set's properties.
    - `changed`: axis → value that replaces the matrix's value in every training, such as `seed` or `rounds`."""
    trainings = tuple({**row, "defense": defense, **changed} for row in rows)
    return expand(replace(matrix, attacks=(), trainings=trainings), facts)


def counts_of(position: float, records: Iterable[Record], question: Question) -> Counts | None:
    """Count the named or reconstructed examples in the attack `records` at a strength of a defense, for each weight
    seed; None if a record has no measured share. `question` says which examples count: "named" (the attacker picks the
    example among candidates) or "reconstructed". `position` is the position of this strength (0 weak, 1 strong)."""
    hits: dict[int, int] = {}
    readings: dict[int, int] = {}
    for record in records:
        cell = record.cell
        assert isinstance(cell, AttackCell)
        if record.attack is None or record.attack.summary is None:
            return None
        summary = record.attack.summary
        share = summary.naming if question == "named" else summary.asr
        if share is None:
            return None
        readings[cell.seed] = summary.examples
        hits[cell.seed] = round(share.value * summary.examples)
    seeds = sorted(hits)
    return Counts(
        position=position, hits=tuple(hits[each] for each in seeds), readings=tuple(readings[each] for each in seeds)
    )


def missing_figure(records: Iterable[Record]) -> str | None:
    """Return the reason why the first of `records` without a result has none; None if all records have results."""
    return next((record.reason or "no figure" for record in records if record.status != "done"), None)


def chance_of(records: Iterable[Record], question: Question) -> float:
    """Return the success rate of a blind guess for the quantity `question`. For "named", the rate is the mean, over the
    attack `records`, of the share of examples that a blind guess picks among the candidates; for "reconstructed", a
    small constant. Raises `ValueError` if no record has the rate."""
    if question == "reconstructed":
        return _LEAST_CHANCE
    chances = [
        record.attack.summary.naming_chance
        for record in records
        if record.attack is not None and record.attack.summary is not None
        if record.attack.summary.naming_chance is not None
    ]
    if not chances:
        raise ValueError("no record has a chance of naming")
    return sum(chances) / len(chances)


def accuracy_of(record: Record) -> float:
    """Return the last test accuracy, in [0, 1], of the training with this `record`; 0 if the training diverged or has
    no result."""
    return 0.0 if record.training is None or record.training.diverged else record.training.accuracy
