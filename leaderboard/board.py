"""Records → the board: one row for each defense setting on a data set, model and condition.

Privacy is the worst case over attacks, example by example, at each point; utility is of a real training under
the same defense; what is incomplete is flagged and ranks below what is complete.  Records only.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf
from typing import Any

import numpy as np

from bench.cell import AttackCell
from bench.leaderboard import flags
from bench.leaderboard.cascades import torn
from bench.leaderboard.conditions import (
    Condition,
    by_condition,
    data_and_model,
    of_one_series,
    sort_key,
    without_baseline,
    without_evidence,
)
from bench.leaderboard.costs import DefenseCost, costs
from bench.leaderboard.flags import INCOMPLETE, Flag
from bench.leaderboard.recognition import Rate, recognition, violations
from bench.leaderboard.strength import Trained, strength, trained_with
from bench.leaderboard.worst import GRADIENT_FREE, ExampleKey, OfSeed, WorstCase
from bench.record.metrics import COMPARED
from bench.record.names import dataset_name, entry_text
from bench.record.schema import Record

_Attacks = dict[str, set[int]]  # name → weight seeds
THRESHOLDS_DB = tuple(range(10, 62, 2))  # at which `reached` is taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best single attack at a point: its rate, and its median of each compared metric by name, an example
    that failed worse than any."""

    attack: str
    asr: float
    medians: dict[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AtPoint:
    """One defense at one interception point.

    `asr` over examples, leaked if any attack got it; `at_least_once` on some draw of the defense's noise.
    `identified`: nearer to its reconstruction than strangers, by any attack; `named`: picked from a gallery.
    `by_attack` each attack's own rate; `reached` the share of examples that some attack brought to each of
    `THRESHOLDS_DB`; `prior_*` what needs no gradient; `reference_db` the linear-Gaussian reference.  `epsilon` bounds
    any attacker here.  `absent` attack → why it is n/a; `crashed` attack → reason; `missing` attacks that ran on
    another row of the condition here.  `by_seed`: weight seed → what leaked of its examples.
    """

    point: str
    asr: float | None
    interval: tuple[float, float] | None
    lower_bound: bool
    at_least_once: float | None
    examples: int
    identified: Rate | None
    named: Rate | None
    best: Best | None
    by_attack: dict[str, float]
    reached: tuple[float, ...]
    prior_asr: float | None
    prior_psnr_db: float | None
    reference_db: float | None = None
    epsilon: float | None
    epsilon_absent: str | None
    absent: dict[str, str]
    crashed: dict[str, str]
    missing: tuple[str, ...]
    flags: tuple[Flag, ...]
    by_seed: dict[int, OfSeed] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One defense setting on a data set, model and condition (`title`; `key` spells it out, `short` names it briefly).

    `rank` counts within the title, complete rows first, by the highest ASR of its points, then by the most that is
    identified at any, then by accuracy lost; equal ones share it.  `pareto` marks a complete row, whose attacks did not
    fail, that no other such row beats in one without losing in the other.  `cells` are the ids of the records behind
    it, those of the best attack at the worst point first.
    """

    title: str
    key: str
    dataset: str
    model: str
    protocol: int | None
    defense: str
    points: dict[str, AtPoint]
    cost: DefenseCost | None
    complete: bool
    private: bool
    cells: tuple[str, ...]
    short: str = ""
    rank: int = 0
    pareto: bool = False

    @property
    def worst(self) -> AtPoint | None:
        """The point at which most leaks, of equal ones the innermost."""
        scored = [at for at in self.points.values() if at.asr is not None]
        return max(scored, key=lambda at: at.asr or 0.0, default=None)

    @property
    def most_identified(self) -> Rate | None:
        """At the point where most is identified."""
        return _most(at.identified for at in self.points.values())

    @property
    def most_named(self) -> Rate | None:
        """At the point where most is named."""
        return _most(at.named for at in self.points.values())

    @property
    def broken(self) -> bool:
        """Whether the defense does not do what it states."""
        return any(flag.code in flags.FAULTS for flag in self.flags)

    @property
    def flags(self) -> tuple[Flag, ...]:
        """All points' flags, each once, those that make the row incomplete first."""
        each = dict.fromkeys(flag for at in self.points.values() for flag in at.flags)
        return tuple(sorted(each, key=lambda flag: (flag.code not in INCOMPLETE, flag)))

    def json(self) -> dict[str, Any]:
        """The row as JSON types."""
        worst = self.worst
        return {
            **asdict(self),
            "worst_point": worst.point if worst else None,
            "flags": [asdict(flag) for flag in self.flags],
        }


def _most(rates: Iterable[Rate | None]) -> Rate | None:
    return max((rate for rate in rates if rate), key=lambda rate: rate.value, default=None)


def board(records: Iterable[Record]) -> list[Row]:
    """The rows, by title, then by rank."""
    listed = of_one_series(records)
    trained, spotted, averaged = costs(listed), trained_with(listed), _averaged(listed)
    broken = frozenset(record.id for record, _ in torn(listed))
    rows: list[Row] = []
    for condition in by_condition(listed):
        attacks_run = {point: _attacks_run(condition, point) for point in condition.points}
        unproven, bare = without_evidence(condition), without_baseline(condition)
        rows += _ranked(
            [
                _row(condition, defense, attacks_run, unproven, bare, trained, spotted, averaged, broken)
                for defense in condition.rows
            ]
        )
    ranked = {row.title for row in rows if row.complete}
    width = Counter[str]()  # of each condition: how many figures it has
    for row in rows:
        width[row.title] += sum(at.asr is not None for at in row.points.values()) + (row.cost is not None)
    return sorted(rows, key=lambda row: (row.title not in ranked, -width[row.title], row.title, row.rank))


def _row(
    condition: Condition,
    defense: str,
    attacks_run: Mapping[str, _Attacks],
    unproven: Sequence[str],
    bare: Sequence[str],
    trained: Mapping[tuple[str, str], DefenseCost],
    spotted: Mapping[tuple[str, str], Sequence[Trained]],
    averaged: frozenset[tuple[str, str, str]],
    broken: frozenset[str],
) -> Row:
    records = [r for worst in condition.rows[defense].values() for each in worst.records.values() for r in each]
    cell = records[0].cell
    task, points = data_and_model(cell), {}
    for point, attacks in attacks_run.items():
        worst = condition.rows[defense].get(point, WorstCase())
        doubts = flags.doubts(
            worst,
            averaged=(task, defense, point) in averaged,
            evidence=point not in unproven,
            baseline=point not in bare,
        )
        doubts += strength(point, worst, spotted.get((task, defense), ()))
        points[point] = _at(point, worst, attacks, doubts, broken)
    row = Row(
        title=condition.title,
        key=condition.key,
        short=condition.short,
        dataset=dataset_name(cell),
        model=entry_text(cell.model),
        protocol=records[0].protocol,
        defense=defense,
        points=points,
        cost=trained.get((task, defense)),
        private=any(record.private for record in records),
        cells=(),
        complete=not any(flag.code in INCOMPLETE for at in points.values() for flag in at.flags),
    )
    return replace(row, cells=_cells(row, condition.rows[defense]))


def _at(point: str, worst: WorstCase, attacks: _Attacks, doubts: Sequence[Flag], broken: frozenset[str]) -> AtPoint:
    priors = [worst.rate(name) for name in worst.scores if name.startswith(GRADIENT_FREE)]
    missing = tuple(
        name
        for name, seeds in attacks.items()
        if name not in worst.records
        # n/a on some weight seeds alone, which others have: a row may not choose its conditions
        or (worst.seeds.get(name) and worst.refused_seeds.get(name, set()) & seeds)
    )
    identified, named, spent = recognition(worst)
    return AtPoint(
        point=point,
        asr=worst.asr,
        interval=worst.interval,
        lower_bound=worst.lower_bound,
        at_least_once=worst.at_least_once,
        examples=len(worst.leaked),
        identified=identified,
        named=named,
        best=_best(worst),
        by_attack={name: worst.rate(name) for name in sorted(worst.scores)},
        reached=_reached(worst),
        prior_asr=max(priors, default=None),
        prior_psnr_db=worst.prior_psnr_db,
        reference_db=worst.reference_db,
        epsilon=worst.privacy.epsilon,
        epsilon_absent=worst.privacy.absent,
        absent=dict(worst.absent),
        crashed=dict(worst.crashed),
        missing=missing,
        flags=(*violations(identified, named, spent), *flags.coverage(worst, missing, broken), *doubts),
        by_seed=worst.by_seed,
    )


def _best(worst: WorstCase) -> Best | None:
    if (best := worst.best) is None:
        return None
    medians = {metric.name: worst.median_on_report_draws(best[0], metric) for metric in COMPARED}
    return Best(attack=best[0], asr=best[1], medians=medians)


def _reached(worst: WorstCase) -> tuple[float, ...]:
    """At each threshold the share of examples whose best PSNR over the attacks is at least that; none in a cascade,
    where nobody goes on once an example has leaked."""
    if worst.cascade:
        return ()
    best: dict[ExampleKey, float] = dict.fromkeys(worst.leaked, -inf)
    for attack, scores in worst.scores.items():
        if not attack.startswith(GRADIENT_FREE):
            for key, example in scores.items():
                best[key] = max(best[key], -inf if example.psnr_db is None else example.psnr_db)
    reached, count = np.array(list(best.values())), max(1, len(best))
    return tuple(np.count_nonzero(reached >= threshold) / count for threshold in THRESHOLDS_DB)


def _attacks_run(condition: Condition, point: str) -> _Attacks:
    """Attacks that ran on some defense of the condition at this point, with their weight seeds: what a complete row
    has."""
    rows = [row[point] for row in condition.rows.values() if point in row]
    names = sorted({name for worst in rows for name in worst.records})
    return {name: set().union(*(worst.seeds.get(name, set()) for worst in rows)) for name in names}


def _ranked(rows: Sequence[Row]) -> list[Row]:
    def order(row: Row) -> tuple[Any, ...]:
        asr, accuracy_lost = row.worst and row.worst.asr, row.cost and row.cost.loss
        return (
            row.broken,
            not row.complete,
            2.0 if asr is None else asr,
            row.most_identified.value if row.most_identified else 0.0,
            2.0 if accuracy_lost is None else accuracy_lost,
        )

    ordered = sorted(rows, key=lambda row: (order(row), sort_key(row.defense, "")))
    keys = [order(row) for row in ordered]
    return [
        replace(row, rank=1 + keys.index(key), pareto=on_front(row, rows))
        for row, key in zip(ordered, keys, strict=True)
    ]


def on_front(row: Row, rows: Iterable[Row], point: str | None = None) -> bool:
    """Whether a row is complete, of known accuracy, has no flag that the attacks failed or that its training is of
    another strength, and no other such row leaks no more and loses no more accuracy, one of them less: at a point, or
    each at its worst.  Of two rows with the same ASR the one that identifies less leaks less."""

    def order(row: Row) -> tuple[tuple[float, float], float] | None:
        at = row.worst if point is None else row.points.get(point)
        asr, accuracy_lost = at.asr if at else None, row.cost.loss if row.cost else None
        doubtful = any(flag.code in (*flags.FAILED, *flags.APART) for flag in row.flags)
        if row.broken or not row.complete or doubtful or asr is None or accuracy_lost is None:
            return None
        identified = row.most_identified if point is None else at and at.identified
        return (asr, identified.value if identified else 0.0), accuracy_lost

    mine = order(row)
    others = [other for other in map(order, rows) if other not in (None, mine)]
    return mine is not None and not any(other[0] <= mine[0] and other[1] <= mine[1] for other in others if other)


def _averaged(records: Iterable[Record]) -> frozenset[tuple[str, str, str]]:
    """Data and model, defense, point of which some cell grants repeated readings."""
    return frozenset(
        (data_and_model(record.cell), entry_text(record.cell.defense), record.cell.point)
        for record in records
        if isinstance(record.cell, AttackCell) and record.cell.grants.repeated_readings > 1
    )


def _cells(row: Row, points: Mapping[str, WorstCase]) -> tuple[str, ...]:
    """The ids of the finished records, those of the best attack at the worst point first."""
    at = row.worst
    best = at.best.attack if at and at.best else ""
    done = [
        (at is None or point != at.point, attack != best, record.cell.seed, getattr(record.cell, "draw", 0), record.id)
        for point, worst in points.items()
        for attack, records in worst.records.items()
        for record in records
        if record.status == "done"
    ]
    return tuple(record_id for *_, record_id in sorted(done))
