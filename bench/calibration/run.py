"""Calibrate a defense in the first round of a federation: search the weakest strength for each interception point and
level (a largest permitted share of named examples).

All measurements are ordinary cells with records in a run folder. The sequence of cells follows from the records only,
so that an interrupted calibration continues at the same place."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.calibration.curve import Counts, LevelStrength, calibrated, usual_slope
from bench.calibration.ladder import FIRST, next_positions
from bench.calibration.measure import (
    TUNING,
    Federation,
    Question,
    Runner,
    at,
    chance_of,
    counts_of,
    draw_of,
    listed,
    missing_figure,
    reading_cells,
)
from bench.cell import Entry
from bench.defenses.base import Defense
from bench.defenses.strength import Strength
from bench.matrix.expand import FactsOf
from bench.matrix.read import Combination, Matrix
from bench.points import POINTS, Stage
from bench.record.schema import Record
from bench.record.tradeoff import NAMED, PROVED, PROVED_ALL, RECONSTRUCTED, permitted

# (defense, point, κ, readings of a client) → the largest share that any attacker can name, by ε; None: no ε
Bound = Callable[[Entry, str, float, int], float | None]

_BISECTIONS = 20


LEVELS_OF: Mapping[Question, tuple[str, ...]] = {"named": NAMED, "reconstructed": (RECONSTRUCTED,)}  # of the board


@dataclass(slots=True, kw_only=True, eq=False)
class Listener:
    """Measurements of a defense family (a defense at all its strengths) against an attacker at an interception
    point."""

    question: Question = "named"
    """Measured quantity: `named` (share of examples that the attacker picks among candidates) or `reconstructed`."""
    point: str
    """Name of the interception point, such as `type-0`."""
    also: tuple[str, ...]
    """Later interception points at which the reading (observed update) is the same."""
    defense: Entry
    """The defense family, with all parameters except the strength."""
    strength: Strength | None
    """The family's strength parameter, with its range; None: a family without a strength."""
    strengths: dict[float | None, tuple[Record, ...]] = field(default_factory=dict)
    """Map from position of a strength (0 weak, 1 strong) to the records of the attacks on tuning victims; the key None:
    a family without a strength."""
    calibrated: dict[str, LevelStrength] = field(default_factory=dict)
    """Map from a level's name, such as `L1`, to the weakest strength that meets the level."""
    trained: dict[float, tuple[Record, ...]] = field(default_factory=dict)
    """Map from position of a strength to the records of the attacks on tuning victims at trained weights; no records
    for a diverged training."""
    absent: str | None = None
    """Reason why the first cell without a result has none; None: all cells have results."""

    def attacks(self, federation: Federation) -> tuple[Combination, ...]:
        """Return the attack settings, one for each weight seed, that measure the share of named or reconstructed
        examples (`question`) at the listener's interception point. `federation`: the attacked setting."""
        return federation.attacks[self.question, self.point]

    @property
    def chance(self) -> float:
        """Share of examples that a blind guess names (picks among candidates) or reconstructs, as the mean over all
        attacks on the half of the victims that the calibration uses."""
        return chance_of((record for records in self.strengths.values() for record in records), self.question)

    @property
    def levels(self) -> dict[str, float]:
        """Levels for the measured quantity: name of the level → largest permitted share of named or reconstructed
        examples."""
        return {level: permitted(level, self.chance) for level in LEVELS_OF[self.question]}

    @property
    def counts(self) -> tuple[Counts, ...]:
        """Numbers of named or reconstructed examples in the first round for each measured strength, from weak to
        strong."""
        return _counts(self.strengths, self.question)

    @property
    def trained_counts(self) -> tuple[Counts, ...]:
        """Numbers of named or reconstructed examples at trained weights for each measured strength, from weak to
        strong."""
        return _counts(self.trained, self.question)


def _counts(records: Mapping[Any, tuple[Record, ...]], question: Question) -> tuple[Counts, ...]:
    counts = [
        counts_of(position, each, question) for position, each in records.items() if position is not None and each
    ]
    return tuple(sorted((each for each in counts if each is not None), key=lambda each: each.position))


def listening_points(federation: Federation, stages: Collection[Stage]) -> dict[str, tuple[str, ...]]:
    """Return the interception points at which a calibration must attack a defense that acts at these `stages` (places
    in a round): those of `federation` at which the defense changes the reading (observed update). The result maps each
    point to later points with the same reading, which need no attacks of their own. For example, if the server does not
    change the update, the result has type-1 → (type-0,), and no key type-0."""
    first: dict[tuple[str, tuple[Stage, ...]], str] = {}
    found: dict[str, tuple[str, ...]] = {}
    for name in federation.points:
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
    """Calibrate defense families: search the weakest strength (parameter for protection) that meets each level (a
    largest permitted share of named or reconstructed examples). Return the measurements of each family, interception
    point and measured quantity (named, reconstructed). The cells (experiments) of all families run together, turn by
    turn.

    - `matrix`, `federation`: the calibration's matrix; the attacks and trainings of a data set and model in it.
    - `families`: for each family (name with parameters, instance of the defense, interception points from
      `listening_points`).
    - `facts`: function that returns a data set's properties.
    - `run`: function that runs cells and returns their records (results).
    - `bound`: function that returns an upper bound on the share of named examples by ε; None: no ε.
    - `say`: function that gets a line of progress per turn."""
    open_: list[Listener] = []
    for entry, defense, points in families:
        declared = type(defense).strength
        open_ += [
            Listener(question=question, point=point, also=points[point], defense=entry, strength=declared)
            for question, point in federation.attacks
            if point in points
        ]
    done = tuple(open_)
    turn = 0
    while open_:
        wanted = [(listener, position) for listener in open_ for position in _wanted(listener)]
        turn += 1
        if wanted:
            say(f"first round, turn {turn}: {listed(at(listener.defense, position) for listener, position in wanted)}")
            _measure(matrix, federation, wanted, facts, run)
        open_ = [listener for listener in open_ if any(each is listener for each, _ in wanted)]
    for listener in done:
        counts = listener.counts
        if listener.absent is None and listener.strength is not None:
            wanted_levels = listener.levels
            if listener.question == "named":  # `half` is only a point in the picture
                wanted_levels["half"] = permitted("half", listener.chance)
            found = calibrated(counts, listener.chance, tuple(wanted_levels.values()), usual_slope(listener.strength))
            listener.calibrated = dict(zip(wanted_levels, found, strict=True))
            if listener.question != "named":
                continue
            for name, readings in ((PROVED, 1), (PROVED_ALL, federation.uploads)):
                if (proved := _proved(listener, bound, readings)) is not None:
                    listener.calibrated[name] = proved
    return done


def _proved(listener: Listener, bound: Bound, readings: int) -> LevelStrength | None:
    """Return the weakest strength at which ε proves L1 for an attacker with `readings` of a client, by bisection; None:
    ε proves L1 at no strength."""
    chance = listener.chance
    level = permitted(PROVED, chance)

    def proves(position: float) -> bool:
        most = bound(at(listener.defense, position), listener.point, chance, readings)
        return most is not None and most <= level

    if not proves(1.0):
        return None
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if proves(middle) else (middle, high)
    return LevelStrength(level=level, position=high, fitted=high, interval=(high, high))


def _wanted(listener: Listener) -> tuple[float | None, ...]:
    if listener.absent is not None:
        return ()
    if listener.strength is None:
        return () if listener.strengths else (None,)
    if not listener.strengths:
        return FIRST
    return next_positions(listener.counts, listener.chance, tuple(listener.levels.values()), listener.strength)


def _measure(
    matrix: Matrix, federation: Federation, wanted: Sequence[tuple[Listener, float | None]], facts: FactsOf, run: Runner
) -> None:
    planned = [
        reading_cells(
            matrix, listener.attacks(federation), at(listener.defense, position), TUNING, facts, draw_of(position)
        )
        for listener, position in wanted
    ]
    records = run([cell for cells in planned for cell in cells])
    for (listener, position), cells in zip(wanted, planned, strict=True):
        answered = tuple(records[item.cell.id] for item in cells)
        if (missing := missing_figure(answered)) is not None:
            listener.absent = missing
        else:
            listener.strengths[position] = answered
