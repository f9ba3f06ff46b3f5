"""Standings: a row for each defense, with its parameters, averaged over all conditions in a suite.

A condition counts at an interception point only if attackers reconstruct at least half of the undefended examples;
otherwise a low figure could be due to weak attackers. A defense's leakage at a point is its mean success rate over
these conditions; an example is a success if any attacker reconstructs the example."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from statistics import fmean
from typing import Any

from bench.leaderboard.board import AtPoint, Row
from bench.leaderboard.conditions import by_condition, ordered
from bench.leaderboard.costs import UNDEFENDED, DefenseCost
from bench.leaderboard.flags import FAULTS, INCOMPLETE
from bench.leaderboard.recognition import most_over_chance
from bench.leaderboard.worst import ExampleKey
from bench.record.groups import grouped
from bench.record.schema import Record
from bench.scoring.intervals import clustered_share, paired_difference

COUNTS = 0.5  # least undefended ASR at which a condition counts
_INFORMED = (" · adaptive", " · black-box")  # ends of an attack's name
_Leaked = dict[tuple[str, str], dict[ExampleKey, bool]]  # (condition, point) → example → leaked


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A defense's mean figures at an interception point, over the conditions of a suite. A condition counts if
    attackers reconstruct at least half of its undefended examples at this point: only then does a low rate show
    protection."""

    leaked: float
    """Mean attack success rate over the conditions that count."""
    interval: tuple[float, float]
    """95 % confidence interval for `leaked`, from the variation over weight seeds."""
    most: float
    """The highest success rate in any condition."""
    where: str
    """The short title of the condition with the rate `most`."""
    recognised: float | None
    """Mean over conditions of the share of recognised examples: the named or the identified rate, whichever exceeds its
    chance level by more; None if unknown."""
    chance: float | None
    """Mean share that blind guesses recognise; None without a recognition rate."""
    ceiling: float | None
    """Mean over conditions of the bound that ε sets on recognition by any attacker; None if a condition has no ε."""
    lower_bound: bool
    """True if more may leak than `leaked` says: a success rate is a lower bound, or no attack with knowledge of the
    defense succeeds even without a defense."""
    conditions: int
    """Number of conditions behind these figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """A figure that a ranked defense lacks, with place and reason; a defense with missing figures ranks last."""

    point: str
    """The interception point, or "training"."""
    where: str
    """The condition's title, or the trained model."""
    why: str
    """The reason why the figure is missing, in words."""

    def __str__(self) -> str:
        return f"{self.point}, {self.where}: {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A line of the ranking over a suite of conditions: a defense, with its parameters, mean figures at each
    interception point, cost in training, and rank."""

    defense: str
    """The defense with its parameters."""
    points: dict[str, Place]
    """Map from interception point to the figures there."""
    costs: tuple[tuple[str, DefenseCost], ...]
    """Pairs (model, cost of the training of this model under the defense), such as lost accuracy and ε."""
    base: tuple[tuple[str, DefenseCost], ...]
    """Pairs (model, cost of the undefended training of this model)."""
    faults: tuple[str, ...]
    """Codes of the flags (warnings) for faults, such as a broken contract (a tested promise)."""
    absent: tuple[Absent, ...] = ()
    """Figures that are missing."""
    rank: int = 0
    """Rank by mean leakage over the points, then recognition, then lost accuracy, each rounded to a percent; ties
    share a rank.

    Defenses with a fault flag or a missing figure (`absent`) rank last."""
    own: bool = False
    """True for the user's defense."""

    @property
    def missing(self) -> int:
        """Number of missing figures, the entries of `absent`."""
        return len(self.absent)

    @property
    def leaked(self) -> float | None:
        """Mean over the interception points of the mean attack success rate; None without a point."""
        return mean(place.leaked for place in self.points.values())

    @property
    def recognised(self) -> float | None:
        """Mean over the interception points of the share of recognised examples; None if unknown at all points."""
        return mean(place.recognised for place in self.points.values())

    @property
    def diverged(self) -> tuple[str, ...]:
        """Names of the models whose median accuracy counts as 0 because trainings diverged."""
        return tuple(model for model, cost in self.costs if cost.diverged and not cost.accuracy)

    @property
    def accuracy(self) -> float | None:
        """Mean test accuracy over the models whose training did not diverge; None if there is no such model."""
        return mean(cost.accuracy for model, cost in self.costs if model not in self.diverged)

    @property
    def lost(self) -> float | None:
        """Accuracy lost: mean undefended test accuracy minus the mean with the defense, both in [0, 1]. Both means are
        over the models whose training did not diverge; None if either is unknown."""
        base = mean(cost.accuracy for model, cost in self.base if model not in self.diverged)
        return None if self.accuracy is None or base is None else base - self.accuracy

    @property
    def overhead(self) -> float | None:
        """Mean over the models of training time with the defense divided by the time without; None if unknown."""
        return mean(cost.overhead for _, cost in self.costs)

    @property
    def _released(self) -> DefenseCost | None:
        each = [cost for _, cost in self.costs if cost.epsilon is not None]
        return max(each, key=lambda cost: cost.epsilon or 0.0) if each and len(each) == len(self.costs) else None

    @property
    def epsilon(self) -> float | None:
        """Largest ε over the released trained models; None if a model has no ε."""
        return self._released.epsilon if self._released else None

    @property
    def epsilon_of(self) -> str | None:
        """Relation between neighbouring data sets for `epsilon`, such as "one client replaced"; None without ε."""
        if (released := self._released) is None or released.epsilon_adjacency is None:
            return None
        changed = released.epsilon_adjacency.partition(":")[0].removeprefix("one ")
        return f"one {released.epsilon_unit} {changed}"

    @property
    def delta(self) -> float | None:
        """δ of the guarantee with `epsilon`; None without ε."""
        return self._released.delta if self._released else None

    def json(self) -> dict[str, Any]:
        """Return this defense's place in the ranking as a dictionary of JSON types, for export: the fields, and the
        figures derived from them."""
        names = ("missing", "leaked", "recognised", "diverged", "accuracy", "lost", "epsilon", "epsilon_of", "delta")
        own = {name: value for name, value in asdict(self).items() if name != "base"}
        return own | {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Difference in leakage between a defense and another defense at an interception point, on victims for which both
    defenses were attacked.

    The 95 % interval resamples readings (observed updates); a resampled reading counts in all its conditions."""

    defense: str
    """The other defense, whose leakage is subtracted."""
    point: str
    """Interception point: `type-2`, `type-1`, `type-0` or `aggregate`."""
    difference: float
    """Attack success rate against the defense minus the rate against the other; below 0, the defense leaks less."""
    interval: tuple[float, float]
    """95 % interval (low, high) of the difference."""
    examples: int
    """Number of examples attacked under both defenses."""


def standings(rows: Sequence[Row], own: Iterable[str] = ()) -> list[Standing]:
    """Rank the defenses of a suite of conditions by their means over all conditions: leakage, then recognition, then
    lost accuracy.

    - `rows`: the board rows of the suite, a row per defense and condition.
    - `own`: names of the user's defenses, which are marked as not published."""
    counting, shown = conditions(rows), _shown(rows)
    mine = set(own)
    by_defense = grouped(rows, lambda row: row.defense)
    undefended = {row.key: row for row in by_defense.get(UNDEFENDED, ())}
    made = [_standing(name, its, counting, undefended, shown) for name, its in by_defense.items()]
    made = [replace(each, own=each.defense in mine) for each in made]
    made.sort(key=lambda each: (_order(each), each.defense != UNDEFENDED, each.defense))
    keys = [_order(each) for each in made]
    return [replace(each, rank=1 + keys.index(key)) for each, key in zip(made, keys, strict=True)]


def conditions(rows: Iterable[Row]) -> dict[str, set[str]]:
    """Map each interception point to the conditions that count at this point, as keys (`Row.key`). A condition counts
    if attackers reconstruct at least half of the undefended examples. `rows` are the board rows."""
    counting: dict[str, set[str]] = {}
    for row in rows:
        if row.defense == UNDEFENDED:
            for point, at in row.points.items():
                if at.asr is not None and at.asr >= COUNTS:
                    counting.setdefault(point, set()).add(row.key)
    return {point: counting[point] for point in ordered(counting)}


def _shown(rows: Iterable[Row]) -> set[tuple[str, str]]:
    """Return the (condition key, point) pairs at which an adaptive or black-box attack succeeds without a defense.

    At other pairs, zero leakage under a defense may be the attacker's failure."""
    return {
        (row.key, point)
        for row in rows
        if row.defense == UNDEFENDED
        for point, at in row.points.items()
        if any(rate and attack.endswith(_INFORMED) for attack, rate in at.by_attack.items())
    }


def _standing(
    defense: str,
    rows: Sequence[Row],
    counting: Mapping[str, set[str]],
    undefended: Mapping[str, Row],
    shown: Collection[tuple[str, str]],
) -> Standing:
    mine, points, absent = {row.key: row for row in rows}, dict[str, Place](), list[Absent]()
    for point, keys in counting.items():
        there = []
        for key in sorted(keys, key=lambda key: undefended[key].title):
            why = _lacks(mine.get(key), undefended[key], point)
            if why is None:
                there.append((mine[key], mine[key].points[point]))
            else:
                absent.append(Absent(point=point, where=undefended[key].short, why=why))
        if there:
            points[point] = _place(there, shown if defense != UNDEFENDED else None)
    costs = {row.model: row.cost for row in rows if row.cost is not None}
    trained = {row.model: row.cost for row in undefended.values() if row.cost is not None}
    absent += [
        Absent(point="training", where=model, why=f"of {seeds} seeds, {base.seeds} without a defense")
        for model, base in sorted(trained.items())
        if (seeds := costs[model].seeds if model in costs else 0) != base.seeds
    ]
    faults = {flag.code for row in rows for flag in row.flags if flag.code in FAULTS}
    return Standing(
        defense=defense,
        points=points,
        costs=tuple(sorted(costs.items())),
        base=tuple(sorted(trained.items())),
        faults=tuple(sorted(faults)),
        absent=tuple(absent),
    )


def _lacks(row: Row | None, undefended: Row, point: str) -> str | None:
    """Return the reason why a row's figure at `point` cannot be averaged, such as "not run"; None if it can.
    `undefended` is the row without a defense under the same condition."""
    at, whole = None if row is None else row.points.get(point), undefended.points[point]
    if at is None or (at.asr is None and not at.flags):
        return "not run"
    incomplete = [flag.code for flag in at.flags if flag.code in INCOMPLETE and flag.code not in FAULTS]
    if incomplete:
        return incomplete[0]
    if at.asr is None:
        return "no attack applies"
    if at.examples != whole.examples:
        return f"{at.examples} examples of {whole.examples}"
    if (at.named is None) != (whole.named is None) or (at.identified is None) != (whole.identified is None):
        return "no figure of recognition"
    return None


def _place(there: Sequence[tuple[Row, AtPoint]], shown: Collection[tuple[str, str]] | None) -> Place:
    rates = [at.asr or 0.0 for _, at in there]
    known = [rate for _, at in there if (rate := most_over_chance(at.named, at.identified)) is not None]
    ceilings = [rate.ceiling for rate in known]
    where, most = max(there, key=lambda pair: pair[1].asr or 0.0)
    return Place(
        leaked=fmean(rates),
        interval=_interval([at for _, at in there]),
        most=most.asr or 0.0,
        where=where.short,
        conditions=len(rates),
        recognised=fmean(rate.value for rate in known) if known else None,
        chance=fmean(rate.chance for rate in known) if known else None,
        ceiling=None if not known or None in ceilings else fmean(each for each in ceilings if each is not None),
        lower_bound=any(
            at.lower_bound or (shown is not None and at.asr != 1 and (row.key, at.point) not in shown)
            for row, at in there
        ),
    )


def _interval(there: Sequence[AtPoint]) -> tuple[float, float]:
    """Return the 95 % interval for the mean success rate over conditions, which share victims and seeds. Each seed's
    mean over the conditions is repeated for each example in the smallest condition. These examples are spread over as
    many readings as the condition with the most readings has."""
    seeds = sorted({seed for at in there for seed in at.by_seed})
    values, readings, clusters = list[float](), list[tuple[int, int]](), list[int]()
    for seed in seeds:
        counts = [at.by_seed[seed] for at in there if seed in at.by_seed]
        examples, behind = min(each.examples for each in counts), max(each.readings for each in counts)
        values += [fmean(each.leaked / each.examples for each in counts)] * examples
        readings += [(seed, n % behind) for n in range(examples)]
        clusters += [seed] * examples
    numbers = {reading: number for number, reading in enumerate(dict.fromkeys(readings))}
    return clustered_share(values, [numbers[each] for each in readings], clusters if len(seeds) > 1 else None)


def _order(standing: Standing) -> tuple[Any, ...]:
    """Return the sort key, with shares rounded to a percent, because finer differences are noise."""
    lost = inf if standing.lost is None or standing.diverged else standing.lost
    return (
        bool(standing.faults),
        standing.missing,
        round(standing.leaked or 0.0, 2),
        round(standing.recognised or 0.0, 2),
        round(lost, 2),
    )


def neighbours(every: Sequence[Standing], defense: str) -> tuple[Standing | None, Standing | None]:
    """Return the published defenses ranked next to `defense` (a name): (better, worse), each None if there is no such
    defense. `every` is the ranking, with `defense`. The user's other defenses are skipped."""
    at = next(n for n, each in enumerate(every) if each.defense == defense)
    above = next((each for each in reversed(every[:at]) if not each.own), None)
    return above, next((each for each in every[at + 1 :] if not each.own), None)


def nearest(rows: Sequence[Row], defense: str, among: Iterable[str]) -> str | None:
    """Return the defense in `among` with the most similar leakage to `defense`, by success and recognition rates in the
    board `rows`, for a comparison side by side. Defenses are given by name with parameters. None if no defense in
    `among` shares a rate with `defense`."""
    counting = conditions(rows)
    profiles: dict[str, dict[tuple[str, str], float]] = {}
    for row in rows:
        for point, at in row.points.items():
            if row.key in counting.get(point, ()) and at.asr is not None:
                recognised = most_over_chance(at.named, at.identified)
                profiles.setdefault(row.defense, {})[row.key, point] = at.asr
                if recognised is not None:
                    profiles[row.defense][row.key, f"{point} recognised"] = recognised.value
    mine = profiles.get(defense, {})
    others = sorted(name for name in set(among) - {defense} if profiles.get(name, {}).keys() & mine.keys())

    def distance(name: str) -> float:
        shared = profiles[name].keys() & mine.keys()
        return fmean((profiles[name][key] - mine[key]) ** 2 for key in shared)

    return min(others, key=distance, default=None)


def beside(records: Iterable[Record], rows: Sequence[Row], defense: str, other: str) -> list[Beside]:
    """Compare the leakage of two defenses on common victims: for each interception point, the success rate against
    `defense` minus the success rate against `other`. Defenses are given by name with parameters.

    - `records`: results of experiments; `rows`: the rows of the board with these records."""
    counting = conditions(rows)
    outcomes: dict[str, _Leaked] = {defense: {}, other: {}}
    for condition in by_condition(records):
        for name in (defense, other):
            for point, worst in condition.rows.get(name, {}).items():
                if condition.key in counting.get(point, ()):
                    outcomes[name][condition.key, point] = worst.leaked
    made = []
    data = {row.key: row.dataset for row in rows}
    for point in counting:
        pairs = [
            (first, second, (data[key], example[0], example[2]))
            for (key, at), mine in outcomes[defense].items()
            if at == point
            for example, first in mine.items()
            if (second := outcomes[other].get((key, point), {}).get(example)) is not None
        ]
        if not pairs:
            continue
        mine_, its, readings = zip(*pairs, strict=True)
        numbers = {reading: number for number, reading in enumerate(dict.fromkeys(readings))}
        clusters = [numbers[reading] for reading in readings] if len(numbers) > 1 else None
        difference, low, high = paired_difference(mine_, its, clusters=clusters)
        made.append(
            Beside(defense=other, point=point, difference=difference, interval=(low, high), examples=len(pairs))
        )
    return made


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of those `values` that are not None; None if there is no such value."""
    there = [value for value in values if value is not None]
    return fmean(there) if there else None
