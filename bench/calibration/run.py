"""Calibrate a defense in a federation: strengths for each listener and level, then accuracy and scores there.

All measurements are ordinary cells with records in a run folder.  The sequence of cells follows from the records alone,
so that an interrupted calibration goes on where it stopped.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.calibration.curve import Calibrated, Tried, calibrated, usual_slope
from bench.calibration.ladder import FIRST, next_positions
from bench.calibration.measure import (
    SCORING,
    TUNING,
    Federation,
    accuracy_of,
    at,
    chance_of,
    reading_cells,
    trained_cells,
    training_cells,
    tried,
)
from bench.cell import Entry, TrainingCell
from bench.defenses.base import Defense
from bench.defenses.strength import Strength
from bench.matrix.expand import FactsOf, PlannedCell
from bench.matrix.read import Matrix
from bench.points import POINTS, Stage
from bench.record.schema import Record
from bench.record.tradeoff import LEVELS, PROVED, permitted

# (defense, interception point, κ) → the largest share that any attacker can name, by ε; None: no ε
Bound = Callable[[Entry, str, float], float | None]
# Runs cells that have no valid record yet, and returns cell id → record for all.
Runner = Callable[[Sequence[PlannedCell]], Mapping[str, Record]]

SELECTED = 100  # seed of the trainings that choose the learning rate
SCORED = (101, 102, 103)  # seeds of the trainings whose accuracy counts
_FINALISTS = 2
_BISECTIONS = 20
_SHORT = 3  # the first trainings take a third of the rounds


def levels(chance: float) -> dict[str, float]:
    """Return the largest permitted shares of named examples by level, for a blind guess's share `chance`.  At the level
    `half`, a point of the picture, half of the examples are named."""
    return {level: permitted(level, chance) for level in (*LEVELS, "half")}


@dataclass(slots=True, kw_only=True, eq=False)
class Listener:
    """A listener's measurements of one family."""

    point: str
    """Interception point."""
    also: tuple[str, ...]
    """Later points that show the same reading."""
    defense: Entry
    """The family, with all parameters but the strength's."""
    strength: Strength | None
    """The family's strength; None: a family without a strength."""
    strengths: dict[float | None, tuple[Record, ...]] = field(default_factory=dict)
    """Position of a strength → tuning records; the key None: a family without a strength."""
    calibrated: dict[str, Calibrated] = field(default_factory=dict)
    """Level → result."""
    absent: str | None = None
    """Reason why the first cell without a figure has none; None: all cells have figures."""

    @property
    def chance(self) -> float:
        """κ over all tuning records."""
        return chance_of(record for records in self.strengths.values() for record in records)

    @property
    def tried(self) -> tuple[Tried, ...]:
        """Counts of named examples for each strength with figures, from weak to strong."""
        found = [tried(position, records) for position, records in self.strengths.items() if position is not None]
        return tuple(sorted((each for each in found if each is not None), key=lambda each: each.position))


def listening_points(federation: Federation, stages: Collection[Stage]) -> dict[str, tuple[str, ...]]:
    """Return the interception points at which a defense with these acting stages changes the reading, each with the
    later points that show the same reading: type-1 with type-0, for a defense without a server.
    """
    first: dict[tuple[str, tuple[Stage, ...]], str] = {}
    found: dict[str, tuple[str, ...]] = {}
    for name in federation.readings:
        point = POINTS[name]
        visible = tuple(stage for stage in stages if point.sees(stage))
        if not visible:
            continue
        key = (str(point.scope), visible)
        if key in first:
            found[first[key]] += (name,)
        else:
            first[key] = name
            found[name] = ()
    return found


def calibrate(
    matrix: Matrix,
    federation: Federation,
    families: Iterable[tuple[Entry, Defense, Mapping[str, tuple[str, ...]]]],
    facts: FactsOf,
    run: Runner,
    bound: Bound,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[Listener, ...]:
    """Return each family's measurements at each of its points (`listening_points`); the cells of all families run
    together, turn by turn.  `facts` returns a data set's properties, `bound` the ceiling by ε; `say` gets a line per
    turn.
    """
    open_: list[Listener] = []
    for entry, defense, points in families:
        declared = type(defense).strength
        open_ += [Listener(point=point, also=also, defense=entry, strength=declared) for point, also in points.items()]
    done = tuple(open_)
    turn = 0
    while open_:
        wanted = [(listener, position) for listener in open_ for position in _wanted(listener)]
        turn += 1
        if wanted:
            say(f"turn {turn}: {len(wanted)} strengths")
            _measure(matrix, federation, wanted, facts, run)
        open_ = [listener for listener in open_ if any(each is listener for each, _ in wanted)]
    for listener in done:
        counts = listener.tried
        if listener.absent is None and listener.strength is not None:
            chance = listener.chance
            wanted_levels = levels(chance)
            found = calibrated(counts, chance, tuple(wanted_levels.values()), usual_slope(listener.strength))
            listener.calibrated = dict(zip(wanted_levels, found, strict=True))
            if (proved := _proved(listener, bound)) is not None:
                listener.calibrated[PROVED] = proved
    return done


def _proved(listener: Listener, bound: Bound) -> Calibrated | None:
    """Return the weakest strength at which ε proves L1, by bisection; None: ε proves L1 at no strength."""
    chance = listener.chance
    level = permitted(PROVED, chance)

    def proves(position: float) -> bool:
        most = bound(at(listener.defense, position), listener.point, chance)
        return most is not None and most <= level

    if not proves(1.0):
        return None
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if proves(middle) else (middle, high)
    return Calibrated(level=level, position=high, fitted=high, interval=(high, high))


def _wanted(listener: Listener) -> tuple[float | None, ...]:
    if listener.absent is not None:
        return ()
    if listener.strength is None:
        return () if listener.strengths else (None,)
    if not listener.strengths:
        return FIRST
    chance = listener.chance
    wanted = tuple(permitted(level, chance) for level in LEVELS)  # `half` needs no precision
    return next_positions(listener.tried, chance, wanted, listener.strength)


def _measure(
    matrix: Matrix, federation: Federation, wanted: Sequence[tuple[Listener, float | None]], facts: FactsOf, run: Runner
) -> None:
    planned = [
        reading_cells(matrix, federation.readings[listener.point], at(listener.defense, position), TUNING, facts)
        for listener, position in wanted
    ]
    records = run([cell for cells in planned for cell in cells])
    for (listener, position), cells in zip(wanted, planned, strict=True):
        answered = tuple(records[item.cell.id] for item in cells)
        missing = [record.reason or "no figure" for record in answered if record.status != "done"]
        if missing:
            listener.absent = missing[0]
        else:
            listener.strengths[position] = answered


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A defense's figures at one strength."""

    listener: Listener
    """The listener that the strength was calibrated for."""
    level: str
    """Name of the level, or `point` for a family without a strength."""
    defense: Entry
    """The defense at this strength."""
    readings: tuple[Record, ...]
    """Attacks on the scoring victims."""
    trainings: tuple[Record, ...]
    """Trainings of the scored seeds with the best learning rate."""
    trained: tuple[Record, ...]
    """Attacks on the scoring victims halfway through these trainings; empty if a training diverged."""


def undefended(matrix: Matrix, federation: Federation, facts: FactsOf, run: Runner) -> tuple[Record, ...]:
    """Return the undefended trainings of the scored seeds, with the learning rate chosen as in `scored`.  `facts`
    returns a data set's properties; `run` runs cells.
    """
    return _trained(matrix, federation, [Entry(name="none")], facts, run)[0]


def calibrated_strengths(listeners: Iterable[Listener]) -> tuple[tuple[Listener, str, Entry], ...]:
    """Return each listener with its reached levels and the defense there; a family without a strength has one."""
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
) -> tuple[Scored, ...]:
    """Return the figures at calibrated `strengths`, given as (listener, level, defense).

    Every strength gets the same learning rates: all for a third of the rounds, the best `_FINALISTS` to the end, the
    best of these for the scored seeds.  The rate is chosen by test accuracy of the seed `SELECTED`.  `facts` returns a
    data set's properties; `run` runs cells.
    """
    readings = [
        reading_cells(matrix, federation.readings[listener.point], defense, SCORING, facts)
        for listener, _, defense in strengths
    ]
    records = dict(run([cell for cells in readings for cell in cells]))
    trainings = _trained(matrix, federation, [defense for _, _, defense in strengths], facts, run)
    halfway = [
        trained_cells(matrix, federation.readings[listener.point], defense, trained, facts)
        for (listener, _, defense), trained in zip(strengths, trainings, strict=True)
    ]
    records |= run([cell for cells in halfway for cell in cells])
    return tuple(
        Scored(
            listener=listener,
            level=level,
            defense=defense,
            readings=tuple(records[item.cell.id] for item in attacked),
            trainings=trained,
            trained=tuple(records[item.cell.id] for item in later),
        )
        for (listener, level, defense), attacked, trained, later in zip(
            strengths, readings, trainings, halfway, strict=True
        )
    )


def _trained(
    matrix: Matrix, federation: Federation, defenses: Sequence[Entry], facts: FactsOf, run: Runner
) -> list[tuple[Record, ...]]:
    """Return each defense's trainings of the scored seeds with its best learning rate."""
    rounds = federation.trainings[0]["rounds"]
    rates = {row["federated"].rate for row in federation.trainings}
    chosen: list[Collection[float]] = [rates] * len(defenses)
    for length, count in ((max(1, rounds // _SHORT), _FINALISTS), (rounds, 1)):
        cells = [
            training_cells(matrix, _of_rates(federation, each), defense, facts, rounds=length, seed=SELECTED)
            for each, defense in zip(chosen, defenses, strict=True)
        ]
        records = run([cell for group in cells for cell in group])
        chosen = [_best(records, group, count) for group in cells]
    cells = [
        tuple(
            cell
            for seed in SCORED
            for cell in training_cells(
                matrix, _of_rates(federation, each), defense, facts, seed=seed, checkpoints=(rounds // 2,)
            )
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
