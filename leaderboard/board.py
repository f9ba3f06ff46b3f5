"""The board: a row for each defense (with parameters) under a condition, computed from records only.

An example counts as leaked at an interception point if any attack reconstructs the example. Accuracy comes from a real
training under the same defense. Incomplete rows, such as rows with missing attacks, rank below complete rows."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf
from typing import Any

import numpy as np

from bench.cell import AttackCell, CheckpointWeights
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
THRESHOLDS_DB = tuple(range(10, 62, 2))  # thresholds for `reached`


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The most successful single attack at an interception point, with its success rate and its median metrics, for a
    board row."""

    attack: str
    """The attack with its parameters and its knowledge of the defense, as text."""
    asr: float
    """Attack success rate: share of examples that this attack reconstructed."""
    medians: dict[str, float | None]
    """Map from metric name to its median over examples; a failed attack counts as the worst value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AtPoint:
    """A defense's figures at an interception point (the attacker's position in a round), for a board row: success
    rates, recognition, ε and warnings."""

    point: str
    """Interception point, the attacker's position in a round: `type-2`, `type-1`, `type-0` or `aggregate`."""
    asr: float | None
    """Attack success rate: share of examples that at least one attack reconstructed; None if no attack on the gradient
    ran."""
    interval: tuple[float, float] | None
    """95 % confidence interval (low, high) for `asr`; None if `asr` is unknown."""
    lower_bound: bool
    """True if more may leak than `asr` says: attacks crashed or diverged, or no attack knew the defense."""
    at_least_once: float | None
    """Share of examples reconstructed under at least one draw of the defense's noise; None if only a single draw was
    attacked."""
    examples: int
    """Number of attacked examples."""
    identified: Rate | None
    """Share of examples identified: the true example is nearer to an attack's reconstruction than every stranger in the
    gallery. None if unknown."""
    named: Rate | None
    """Share of examples named: an attacker picks the true example from the gallery's candidates. None if unknown."""
    best: Best | None
    """The most successful single attack; None without an attack."""
    by_attack: dict[str, float]
    """Map from attack name to the share of examples that this attack reconstructed."""
    reached: tuple[float, ...]
    """Shares of examples reconstructed by any attack with a PSNR of at least 10, 12, …, 60 dB, in this order; () if
    attacks stop early, before such quality."""
    prior_asr: float | None
    """Highest success rate among the prior-only baselines; None without a baseline."""
    prior_psnr_db: float | None
    """Median over examples of the highest PSNR in dB among the prior-only baselines; None without a baseline."""
    reference_db: float | None = None
    """Median PSNR in dB that an ideal estimate would have if the gradient were linear around the true example; None:
    not computed."""
    epsilon: float | None
    """Differential-privacy ε of a reading at this point, valid against any attacker; None without a guarantee."""
    epsilon_absent: str | None
    """Reason why ε is absent; None if ε exists."""
    absent: dict[str, str]
    """Map from attack name to the reason why the attack does not apply (status n/a)."""
    crashed: dict[str, str]
    """Map from attack name to the reason for its crash."""
    missing: tuple[str, ...]
    """Attacks run on another defense in this condition, but not on this defense."""
    flags: tuple[Flag, ...]
    """Warnings: reasons to doubt the figures."""
    by_seed: dict[int, OfSeed] = field(default_factory=dict)
    """Map from the seed of the model's weights to the numbers of leaked examples, examples and readings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A board row: a defense, with its parameters, under a condition (data, model, weights, setting). The row holds its
    figures at each interception point, its cost in training, and its rank among the defenses in this condition."""

    title: str
    """The condition (data, model, weights, setting) in words."""
    key: str
    """The condition as canonical JSON."""
    dataset: str
    """Name of the data set."""
    model: str
    """Name of the model."""
    protocol: int | None
    """Version of the evaluation's rules; None for records from before the rules had versions."""
    defense: str
    """The defense with its parameters, as text, such as `prune(share=0.7)`; `none`: undefended."""
    points: dict[str, AtPoint]
    """Map from interception point to the figures there."""
    cost: DefenseCost | None
    """Cost of the defense in training, such as lost accuracy; None without a training."""
    complete: bool
    """True if no flag marks a gap, such as an attack that was not run or too few examples (`flags.INCOMPLETE`)."""
    private: bool
    """True if the data must not leave the machine."""
    cells: tuple[str, ...]
    """Ids of this row's finished cells (experiments); first the best attack's cells at the interception point with the
    highest success rate."""
    short: str = ""
    """Short title of the condition, such as `mnist · dlg-lenet (sigmoid) · untrained · B = 4`."""
    rank: int = 0
    """Rank among rows with the same title (1: best); ties share a rank.

    Complete rows come first, then incomplete rows, then rows with a fault flag. Among these, rows are sorted by the
    highest success rate over points, the highest identified rate, and lost accuracy; smaller is better."""
    pareto: bool = False
    """True if the row is on the Pareto front: every other row has a higher success rate or loses more accuracy
    (`on_front`)."""

    @property
    def worst(self) -> AtPoint | None:
        """Figures at the interception point with the highest success rate; None if no point has a rate. In a tie, the
        point furthest inside the client (type-2 first) wins."""
        scored = [at for at in self.points.values() if at.asr is not None]
        return max(scored, key=lambda at: at.asr or 0.0, default=None)

    @property
    def most_identified(self) -> Rate | None:
        """Highest identified rate over the interception points; None if no point has such a rate."""
        return _most(at.identified for at in self.points.values())

    @property
    def most_named(self) -> Rate | None:
        """Highest named rate over the interception points; None if no point has such a rate."""
        return _most(at.named for at in self.points.values())

    @property
    def broken(self) -> bool:
        """True if a flag is a fault: the defense breaks a contract (a tested promise), or measurements refute its
        description or its ε."""
        return any(flag.code in flags.FAULTS for flag in self.flags)

    @property
    def flags(self) -> tuple[Flag, ...]:
        """The flags (warnings) raised at all points, without repeats; flags that make the row incomplete come first."""
        each = dict.fromkeys(flag for at in self.points.values() for flag in at.flags)
        return tuple(sorted(each, key=lambda flag: (flag.code not in INCOMPLETE, flag)))

    def json(self) -> dict[str, Any]:
        """Return this board row as a dictionary of JSON types, for export: a key for each field, the flags (warnings),
        and the interception point with the highest success rate (`worst_point`)."""
        worst = self.worst
        return {
            **asdict(self),
            "worst_point": worst.point if worst else None,
            "flags": [asdict(flag) for flag in self.flags],
        }


def _most(rates: Iterable[Rate | None]) -> Rate | None:
    return max((rate for rate in rates if rate), key=lambda rate: rate.value, default=None)


def board(records: Iterable[Record]) -> list[Row]:
    """Compute the board from `records` (results of experiments): a row for each defense under each condition (data,
    model, weights, setting), sorted by condition and rank. Conditions with a complete row come first, then conditions
    with more figures."""
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
    width = Counter[str]()  # condition → number of figures
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
        # n/a on weight seeds that other rows have: a defense may not choose its seeds
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
    if worst.cascade:  # attacks stop at the first success
        return ()
    best: dict[ExampleKey, float] = dict.fromkeys(worst.leaked, -inf)
    for attack, scores in worst.scores.items():
        if not attack.startswith(GRADIENT_FREE):
            for key, example in scores.items():
                best[key] = max(best[key], -inf if example.psnr_db is None else example.psnr_db)
    reached, count = np.array(list(best.values())), max(1, len(best))
    return tuple(np.count_nonzero(reached >= threshold) / count for threshold in THRESHOLDS_DB)


def _attacks_run(condition: Condition, point: str) -> _Attacks:
    """Map each attack that ran at `point`, on any of the condition's defenses, to its weight seeds."""
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
    """Return whether a board row is on the Pareto front of leakage and lost accuracy: every other row leaks more or
    loses more accuracy. Equal rows do not count.

    - `row`: the row; `rows`: the rows compared with it, in the same condition.
    - `point`: leakage is the success rate at this interception point, or with None the highest over points; a tie is
      decided by the identified rate.

    The result is False for rows that are incomplete, without accuracy, or flagged for faults, failed attacks or a
    weaker defense in training."""

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
    return frozenset(
        (data_and_model(record.cell), entry_text(record.cell.defense), record.cell.point)
        for record in records
        if isinstance(record.cell, AttackCell)
        and (
            record.cell.grants.repeated_readings > 1
            or (isinstance(record.cell.weights, CheckpointWeights) and record.cell.weights.further)
        )
    )


def _cells(row: Row, points: Mapping[str, WorstCase]) -> tuple[str, ...]:
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
