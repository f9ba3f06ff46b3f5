"""Records → the board: one row for each defense setting on a data set, model and condition.

Privacy is the worst case over attacks, picture by picture, at each point; utility is of a real training under
the same defense; what is incomplete is flagged and ranks below what is complete.  Records only.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from bench.leaderboard import flags
from bench.leaderboard.blocks import (
    Block,
    attack_name,
    blocks,
    dataset_name,
    entry,
    of_one_series,
    question,
    rank,
    without_evidence,
)
from bench.leaderboard.costs import Cost, costs, trained_on
from bench.leaderboard.flags import Flag
from bench.leaderboard.worst import BASELINES, FIGURES, Worst
from bench.record.store import Record, is_private

THRESHOLDS_DB = tuple(range(10, 62, 2))  # at which `reached` is taken
UNRANKED = ("missing", "crashed", "few")  # flags of an incomplete row


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best single attack at a point: its rate and medians, a failed picture worse than any."""

    attack: str
    asr: float
    rmse: float | None
    psnr_db: float | None
    ssim: float | None
    lpips: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AtPoint:
    """One defense at one interception point.

    `asr` over pictures, leaked if any attack got it; `at_least_once` on some draw of the defense's noise.
    `by_attack` each attack's own rate; `reached` the share of pictures that some attack brought to each of
    `THRESHOLDS_DB`; `prior_*` what needs no gradient.  `epsilon` bounds any attacker at this tap.
    """

    point: str
    asr: float | None
    interval: tuple[float, float] | None
    lower_bound: bool
    at_least_once: float | None
    pictures: int
    best: Best | None
    by_attack: dict[str, float]
    reached: tuple[float, ...]
    prior_asr: float | None
    prior_psnr_db: float | None
    epsilon: float | None
    epsilon_absent: str | None
    absent: dict[str, str]
    crashed: dict[str, str]
    flags: tuple[Flag, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One defense setting on a data set, model and condition (`title`; `key` spells it out).

    `rank` counts within the title, complete rows first, by the highest ASR of its points, then by accuracy
    lost; `pareto` marks a complete row that no other beats in both.  `cells` are the ids of the records
    behind it, those of the best attack at the worst point first.
    """

    title: str
    key: str
    dataset: str
    model: str
    protocol: int | None
    defense: str
    points: dict[str, AtPoint]
    cost: Cost | None
    complete: bool
    private: bool
    cells: tuple[str, ...]
    rank: int = 0
    pareto: bool = False

    @property
    def worst(self) -> AtPoint | None:
        """The point at which most leaks, of equal ones the innermost."""
        scored = [at for at in self.points.values() if at.asr is not None]
        return max(scored, key=lambda at: at.asr or 0.0, default=None)

    @property
    def flags(self) -> tuple[Flag, ...]:
        """All points' flags, each once, those that make the row incomplete first."""
        found = dict.fromkeys(flag for at in self.points.values() for flag in at.flags)
        return tuple(sorted(found, key=lambda flag: (flag.code not in UNRANKED, flag)))

    def json(self) -> dict[str, Any]:
        """The row as JSON types."""
        worst = self.worst
        return {
            **asdict(self), "worst_point": worst.point if worst else None,
            "flags": [asdict(flag) for flag in self.flags],
        }  # fmt: skip


def board(records: Iterable[Record]) -> list[Row]:
    """The rows, by title, then by rank.

    Raises what records with other fields make it raise; an unknown protocol stands in titles of its own.
    """
    listed = of_one_series(records)
    gathered: dict[tuple[str, str], list[Record]] = {}
    for record in listed:
        if record.cell.get("kind") == "attack":
            key = (question(record), entry(record.cell["defense"]))
            gathered.setdefault(key, []).append(record)
    spent, often = costs(listed), _read_often(listed)
    rows = []
    for block in blocks(listed):
        silent = without_evidence(block)
        asked = {point: _asked(block, point) for point in block.points}
        rows += _ranked(
            [
                _row(block, defense, gathered[block.key, defense], asked, silent, spent, often)
                for defense in block.rows
            ]
        )
    return sorted(rows, key=lambda row: (row.title, row.rank))


def _row(
    block: Block, defense: str, own: Sequence[Record], asked: Mapping[str, Sequence[str]],
    silent: Sequence[str], spent: Mapping[tuple[str, str], Cost], often: frozenset[tuple[str, str, str]],
) -> Row:  # fmt: skip
    cell = own[0].cell
    points = {}
    for point in block.points:
        worst = block.rows[defense].get(point, Worst())
        records = [record for record in own if record.cell["point"] == point]
        doubts = flags.doubts(
            worst, records, evidence=point not in silent,
            read_often=(trained_on(cell), defense, point) in often,
        ) if records else []  # fmt: skip
        points[point] = _at(point, worst, records, (*flags.coverage(worst, asked[point]), *doubts))
    row = Row(
        title=block.title, key=block.key, dataset=dataset_name(cell), model=entry(cell["model"]),
        protocol=json.loads(block.key)[1], defense=defense, points=points,
        cost=spent.get((trained_on(cell), defense)), private=any(map(is_private, own)),
        complete=not any(flag.code in UNRANKED for at in points.values() for flag in at.flags), cells=(),
    )  # fmt: skip
    return replace(row, cells=_cells(row, own))


def _at(point: str, worst: Worst, records: Sequence[Record], found: Sequence[Flag]) -> AtPoint:
    own = next((record.summary for record in records if record.status == "done"), {})
    priors = [worst.rate(name) for name in worst.by_attack if name.startswith(BASELINES)]
    return AtPoint(
        point=point, asr=worst.asr, interval=worst.interval, lower_bound=worst.lower_bound,
        at_least_once=worst.at_least_once, pictures=len(worst.leaked), best=_best(worst),
        by_attack={name: worst.rate(name) for name in sorted(worst.by_attack)}, reached=_reached(worst),
        prior_asr=max(priors, default=None), prior_psnr_db=worst.prior_psnr_db, epsilon=own.get("epsilon"),
        epsilon_absent=own.get("epsilon_absent"), absent=dict(worst.absent), crashed=dict(worst.crashed),
        flags=tuple(found),
    )  # fmt: skip


def _best(worst: Worst) -> Best | None:
    best = worst.best
    if best is None:
        return None
    name, asr = best
    return Best(attack=name, asr=asr, **{figure: worst.quoted(name, figure) for figure in FIGURES})


def _reached(worst: Worst) -> tuple[float, ...]:
    """At each threshold the share of pictures whose best PSNR over the attacks is at least that."""
    best: dict[Any, float] = dict.fromkeys(worst.leaked, float("-inf"))
    for name, own in worst.figures["psnr_db"].items():
        if not name.startswith(BASELINES):
            for key, value in own.items():
                best[key] = max(best[key], value) if value == value else best[key]
    count = max(1, len(best))
    return tuple(sum(value >= threshold for value in best.values()) / count for threshold in THRESHOLDS_DB)


def _asked(block: Block, point: str) -> list[str]:
    """Attacks that some defense of the block met at this point: what a complete row has."""
    met = {
        name
        for row in block.rows.values()
        if point in row
        for name in (*row[point].by_attack, *row[point].absent, *row[point].crashed)
    }
    return sorted(met)


def _ranked(rows: Sequence[Row]) -> list[Row]:
    front = {row.defense for row in rows if _on_front(row, rows)}
    ordered = sorted(rows, key=lambda row: (not row.complete, *_order(row), rank(row.defense, "")))
    return [
        replace(row, rank=number, pareto=row.defense in front) for number, row in enumerate(ordered, start=1)
    ]


def _order(row: Row) -> tuple[float, float]:
    """What less of is better: the highest ASR, accuracy lost."""
    worst = row.worst
    loss = row.cost.loss if row.cost else None
    return (2.0 if worst is None or worst.asr is None else worst.asr), (2.0 if loss is None else loss)


def _on_front(row: Row, rows: Iterable[Row]) -> bool:
    """Whether no complete row of known accuracy leaks no more and loses no more accuracy, one of them less."""
    if not row.complete or row.cost is None or row.cost.loss is None:
        return False
    mine = _order(row)
    others = (
        _order(other) for other in rows if other.complete and other.cost and other.cost.loss is not None
    )
    return not any(other[0] <= mine[0] and other[1] <= mine[1] and other != mine for other in others)


def _read_often(records: Iterable[Record]) -> frozenset[tuple[str, str, str]]:
    """Data and model, defense, point of which some cell grants repeated readings."""
    return frozenset(
        (trained_on(record.cell), entry(record.cell["defense"]), record.cell["point"])
        for record in records
        if record.cell.get("kind") == "attack" and record.cell["repeated_readings"] > 1
    )


def _cells(row: Row, own: Sequence[Record]) -> tuple[str, ...]:
    at = row.worst
    best = at.best.attack if at and at.best else ""

    def order(record: Record) -> tuple[bool, bool, int, int, str]:
        cell = record.cell
        return (
            at is None or cell["point"] != at.point, attack_name(cell) != best, cell["seed"], cell["draw"], record.id,
        )  # fmt: skip

    return tuple(record.id for record in sorted(own, key=order) if record.status == "done")
