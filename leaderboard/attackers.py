"""All attacks on the same victims in each condition (a full cross): rates, ranks, unions and paired differences.

A condition here is a board's condition (`bench.leaderboard.conditions`) with a defense and an interception point.  An
attack that is not applicable in a condition reconstructs nothing there."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import inf
from statistics import fmean
from typing import Any

from bench.cell import AttackCell
from bench.leaderboard.conditions import condition_key, condition_text, of_one_series, sort_key
from bench.leaderboard.costs import UNDEFENDED
from bench.leaderboard.worst import ExampleKey, example_keys, example_scores, readings
from bench.record.names import attack_name, entry_text
from bench.record.schema import Record
from bench.scoring.intervals import Interval, Stratum, stratified_change, stratified_difference, stratified_share
from bench.scoring.summary import median

LOW, HIGH = 0.05, 0.5  # an attack fails where its rate is at most `LOW`, and another attack's rate at least `HIGH`


@dataclass(slots=True)
class Outcome:
    """An attack's pooled result in a condition (data, model, setting, defense, interception point), over all seeds of
    the model's weights: reconstructed examples and cost."""

    hits: dict[ExampleKey, bool] = field(default_factory=dict)
    """Map from example to True if the attack reconstructed the example; not applicable or crashed: False."""
    psnr_db: list[float] = field(default_factory=list)
    """PSNR in dB for each reconstructed example."""
    cpu_seconds: float = 0.0
    """CPU time in seconds."""
    absent: str | None = None
    """Reason why the attack is not applicable (status n/a), from the first such record; None if it applied in a record.
    """
    crashed: str | None = None
    """Reason for the first crash; None without a crash."""
    machines: set[str] = field(default_factory=set)
    """Names of the devices that ran the attack."""

    def add(self, record: Record) -> None:
        """Add the result `record` to this outcome: the same attack in the same condition, under weights of another
        seed."""
        cell = record.cell
        assert isinstance(cell, AttackCell)
        self.hits |= dict.fromkeys(example_keys(cell), False)
        self.cpu_seconds += record.cost.cpu_seconds
        if record.environment is not None:
            self.machines.add(record.environment.device_name)
        if record.status == "n/a":
            self.absent = self.absent or record.reason or "no reason given"
        elif record.attack is None:
            self.crashed = self.crashed or record.reason or "no reason given"
        for key, example in example_scores(record):
            self.hits[key] = example.success
            if example.success and example.psnr_db is not None:
                self.psnr_db.append(example.psnr_db)

    @property
    def rate(self) -> float:
        """Share of examples that the attack reconstructed."""
        return fmean(self.hits.values())


@dataclass(slots=True)
class Contest:
    """A column in the table of attacks by conditions: a condition (data, model, weights, setting, defense, interception
    point), with the outcome of each attack there."""

    parts: tuple[str, ...]
    """Data, model, weights and federated setting as text, such as `B = 8`."""
    defense: str
    """The defense's name with its parameters; empty: undefended."""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """Map from the attack's name (with parameters and knowledge) to its outcome."""

    @property
    def title(self) -> str:
        """The condition as a line of text: its parts and the defense."""
        return " · ".join((*self.parts, self.defense) if self.defense else self.parts)

    def examples(self) -> frozenset[ExampleKey]:
        """Return all examples in at least one attack's records, also of attacks that crashed or are not applicable, as
        keys (weight seed, noise draw, reading, example)."""
        return frozenset().union(*(outcome.hits for outcome in self.outcomes.values()))

    def union(self, attacks: Collection[str]) -> frozenset[ExampleKey]:
        """Return the examples that at least one of `attacks` (names) reconstructed, as keys (weight seed, noise draw,
        reading, example)."""
        theirs = (self.outcomes[name] for name in attacks if name in self.outcomes)
        return frozenset(key for outcome in theirs for key, hit in outcome.hits.items() if hit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attacker:
    """A row in the table of attacks by conditions: an attack's success rates in all conditions, with rank, cost, and
    its contribution to the union of all attacks."""

    attack: str
    """The attack with its parameters and its knowledge of the defense, as text."""
    own: bool
    """True if the attack comes from the user's run, not from the reference."""
    rates: tuple[float | None, ...]
    """Success rate in each condition; None: not applicable, or not run."""
    rate: float
    """Mean success rate over conditions; a condition to which the attack does not apply counts 0."""
    interval: Interval
    """95 % interval (low, high) for `rate`, over victims and seeds of the model's weights."""
    psnr_db: float | None
    """Median PSNR in dB over the reconstructed examples; None if there are none."""
    seconds: float | None
    """CPU seconds for each reconstructed example; None if there are none."""
    cpu_seconds: float
    """CPU time of all the attack's cells (experiments), in seconds."""
    only: tuple[int, ...]
    """For each condition, the number of examples that only this attack reconstructed."""
    adds: float
    """The attack's contribution: the union rate of all attacks minus the union rate without this attack. An example is
    in a union if any of its attacks reconstructed it. Both rates are means over conditions."""
    absent: Mapping[int, str]
    """Map from condition number (from 0) to the reason why the attack is not applicable there (status n/a)."""
    crashed: Mapping[int, str]
    """Map from condition number (from 0) to the reason for a crash."""
    missing: tuple[int, ...]
    """Numbers (from 0) of the conditions in which the attack was not run on all examples."""
    machines: tuple[str, ...]
    """Names of the devices that ran the attack."""
    rank: int = 0
    """Rank from 1 by `rate`, highest first, then by `seconds`, lowest first; attacks with missing conditions rank last.
    """

    def json(self) -> dict[str, Any]:
        """Return this attack's figures as a dictionary of JSON types, for export: a key for each field."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Cross:
    """Ranking of attacks over many conditions, as a table: all attacks (rows, ranked) by all conditions (columns)."""

    contests: tuple[Contest, ...]
    """Conditions (the table's columns), each with the outcomes of the attacks."""
    attackers: tuple[Attacker, ...]
    """Attacks (the table's rows), ranked."""

    @cached_property
    def unions(self) -> tuple[float, ...]:
        """For each condition, the share of examples that at least one attack reconstructed."""
        names = [each.attack for each in self.attackers]
        return tuple(len(each.union(names)) / len(each.examples()) for each in self.contests)

    @property
    def union(self) -> float:
        """Share of examples that at least one attack reconstructed, as a mean over conditions."""
        return fmean(self.unions)

    def at(self, attack: str) -> Attacker:
        """Return the table row of `attack`, an attack's name with parameters and knowledge; raises `KeyError` for an
        attack without a record."""
        for each in self.attackers:
            if each.attack == attack:
                return each
        raise KeyError(attack)

    def examples(self) -> int:
        """Return the total number of attacked examples, a sum over conditions. An example counts once for all attacks
        in a condition, and again in each further condition."""
        return sum(len(each.examples()) for each in self.contests)

    def best(self, number: int, but: str) -> tuple[str, float]:
        """Return the most successful attack in a condition, except a given attack: (name, success rate), or ("", 0) if
        no other attack ran.

        - `number`: the condition's number, from 0.
        - `but`: name of the excepted attack; "" excepts none."""
        others = [each for each in self.attackers if each.attack != but and each.rates[number] is not None]
        first = max(others, key=lambda each: each.rates[number] or 0.0, default=None)
        return ("", 0.0) if first is None else (first.attack, first.rates[number] or 0.0)

    def json(self) -> dict[str, Any]:
        """Return the ranking of attacks as JSON types, for export: `conditions`, each with title, number of examples
        and union rate, and `attacks`, the rows."""
        conditions = [
            {"title": each.title, "examples": len(each.examples()), "union": union}
            for each, union in zip(self.contests, self.unions, strict=True)
        ]
        return {"conditions": conditions, "attacks": [each.json() for each in self.attackers]}


def crossed(records: Iterable[Record], own: Collection[str] = (), victims: str | None = None) -> Cross | None:
    """Build the ranking of attacks over all conditions, on a sample of victims; None if no attack was run on this
    sample. Attacks with a granted gallery (a list of candidates) are left out: they name examples and reconstruct none.

    - `records`: results of experiments.
    - `own`: names of the user's attacks.
    - `victims`: key of the sample (`AttackCell.victims`); None takes the sample that the matrix itself draws.

    Conditions are sorted by defense (undefended first), by interception point, and by the number of rare parts. A part
    of the title (such as `B = 1`) is rare if at most half of the conditions have it."""
    contests: dict[str, Contest] = {}
    order: dict[str, tuple[Any, ...]] = {}
    for record in of_one_series(records):
        cell = record.cell
        if not isinstance(cell, AttackCell) or cell.victims != victims or cell.grants.gallery:
            continue
        key = f"{condition_key(record)} {cell.defense} {cell.point}"
        if (contest := contests.get(key)) is None:
            defense = "" if cell.defense.name == UNDEFENDED else entry_text(cell.defense)
            contest = contests[key] = Contest(tuple(condition_text(cell).split(" · ")), defense)
        order[key] = sort_key(entry_text(cell.defense), cell.point)
        contest.outcomes.setdefault(attack_name(cell), Outcome()).add(record)
    if not contests:
        return None
    shared = common(contests.values())

    def place(key: str) -> tuple[Any, ...]:
        others = [part for part in contests[key].parts if part not in shared]
        return *order[key], len(others), others, key

    ordered = tuple(contests[key] for key in sorted(contests, key=place))
    names = tuple(dict.fromkeys(name for contest in ordered for name in contest.outcomes))
    made = sorted((_attacker(name, ordered, names, name in own) for name in names), key=_order)
    ranked = tuple(replace(each, rank=number) for number, each in enumerate(made, 1))
    return Cross(contests=ordered, attackers=ranked)


def common(contests: Collection[Contest]) -> list[str]:
    """Return the parts of a condition's title, such as `B = 1`, that more than half of the `contests` (conditions with
    their outcomes) share, in the title's order. Short names of conditions leave these parts out."""
    counts = Counter(part for contest in contests for part in contest.parts)
    places = {part: place for contest in contests for place, part in enumerate(contest.parts)}
    return sorted((part for part, count in counts.items() if 2 * count > len(contests)), key=places.__getitem__)


def difference(cross: Cross, attack: str, other: str) -> tuple[float, float, float]:
    """Compare two attacks on the same victims: the mean success rate of `attack` minus the mean success rate of
    `other`, both in [0, 1]. Return (difference, low, high), with the ends of the 95 % interval. The attacks are given
    by name.

    The means are over those conditions of the table `cross` in which both attacks ran. The interval comes from pairs of
    results on the same victim, with resampled weight seeds. Raises `ValueError` if no condition has both attacks."""
    mine, its, seeds = list[list[bool]](), list[list[bool]](), list[list[int]]()
    for contest in cross.contests:
        if attack in contest.outcomes and other in contest.outcomes:
            first, second = contest.outcomes[attack].hits, contest.outcomes[other].hits
            if keys := sorted(first.keys() & second.keys()):
                mine.append([first[key] for key in keys])
                its.append([second[key] for key in keys])
                seeds.append([key[0] for key in keys])
    return stratified_difference(mine, its, seeds)


def drop(published: Cross, second: Cross, attack: str) -> tuple[float, float, float]:
    """Test whether an attack is tuned to its victims: its success rate on a second sample of victims minus the rate on
    the published sample. Return (change, low, high), with the ends of the 95 % interval.

    - `published`, `second`: tables with the results on the two samples.
    - `attack`: the attack's name, with parameters and knowledge.

    Both rates, in [0, 1], are means over the conditions in both tables. The interval accounts for the different
    victims, with resampled weight seeds. Raises `ValueError` if no condition is in both."""
    theirs = {contest.title: contest for contest in second.contests}
    pairs = [(contest, theirs[contest.title]) for contest in published.contests if contest.title in theirs]
    before, after = ([_stratum(contest, attack) for contest in side] for side in zip(*pairs, strict=True))
    return stratified_change(before, after)


def neighbours(cross: Cross, attack: str) -> tuple[Attacker | None, Attacker | None]:
    """Return the attacks ranked next to `attack` (a name) in the table `cross`: (better, worse), each None if there is
    no such attack. Attacks that lack a condition are skipped. If the table has reference attacks, the user's other
    attacks are skipped too."""
    at = next(n for n, each in enumerate(cross.attackers) if each.attack == attack)
    published = any(not each.own for each in cross.attackers)
    others = [
        each if not (each.missing or (published and each.own and each.attack != attack)) else None
        for each in cross.attackers
    ]
    above = next((each for each in reversed(others[:at]) if each is not None), None)
    return above, next((each for each in others[at + 1 :] if each is not None), None)


def fails(cross: Cross, attack: str) -> list[tuple[int, str, float]]:
    """Return the conditions in which an attack almost always fails but another attack succeeds: triples (condition
    number from 0, other attack, its rate). Fails: success rate at most 5 % (`LOW`); succeeds: at least 50 % (`HIGH`).
    Conditions in which the attack is not applicable or not run are left out.

    - `cross`: table of attacks by conditions; `attack`: the attack's name."""
    rates = cross.at(attack).rates
    low = [number for number, rate in enumerate(rates) if rate is not None and rate <= LOW]
    return [(number, *best) for number in low if (best := cross.best(number, attack))[1] >= HIGH]


def _attacker(attack: str, contests: Sequence[Contest], names: Sequence[str], own: bool) -> Attacker:
    others = [name for name in names if name != attack]
    rates, only, adds = list[float | None](), list[int](), list[float]()
    missing, absent, crashed = list[int](), dict[int, str](), dict[int, str]()
    for number, contest in enumerate(contests):
        examples, outcome = contest.examples(), contest.outcomes.get(attack, Outcome())
        alone = contest.union([attack]) - contest.union(others)
        only.append(len(alone))
        adds.append(len(alone) / len(examples))
        if outcome.hits.keys() != examples:
            missing.append(number)
        if outcome.absent is not None:
            absent[number] = outcome.absent
        if outcome.crashed is not None:
            crashed[number] = outcome.crashed
        ran = outcome.hits and not (outcome.absent is not None and not any(outcome.hits.values()))
        rates.append(outcome.rate if ran else None)
    there = [contest.outcomes[attack] for contest in contests if attack in contest.outcomes]
    successes = sum(sum(outcome.hits.values()) for outcome in there)
    spent = sum(outcome.cpu_seconds for outcome in there)
    _, low, high = stratified_share([_stratum(contest, attack) for contest in contests])
    return Attacker(
        attack=attack,
        own=own,
        rates=tuple(rates),
        rate=fmean(rate or 0.0 for rate in rates),
        interval=(low, high),
        psnr_db=median([value for outcome in there for value in outcome.psnr_db], -inf),
        seconds=spent / successes if successes else None,
        cpu_seconds=spent,
        only=tuple(only),
        adds=fmean(adds),
        absent=absent,
        crashed=crashed,
        missing=tuple(missing),
        machines=tuple(sorted(set[str]().union(*(outcome.machines for outcome in there)))),
    )


def _stratum(contest: Contest, attack: str) -> Stratum:
    """Return an attack's successes (True or False) on all examples of a condition, and each example's reading and
    weight seed: three lists."""
    hits = dict.fromkeys(sorted(contest.examples()), False)
    hits |= contest.outcomes[attack].hits if attack in contest.outcomes else {}
    keys = list(hits)
    return list(hits.values()), readings(keys), [key[0] for key in keys]


def _order(attacker: Attacker) -> tuple[Any, ...]:
    seconds = inf if attacker.seconds is None else attacker.seconds
    return bool(attacker.missing), -attacker.rate, seconds, attacker.cpu_seconds, attacker.attack
