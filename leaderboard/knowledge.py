"""Measure the attackers' gain from knowledge of the defense: plain against adaptive attackers on the same examples.

Only attacks with a plain and an adaptive cell are compared, so the change is due to knowledge. Black-box attackers are
different attacks and have a separate column. If a black-box attacker succeeds more often than the adaptive attackers,
the defense's description or an attack's solver may be faulty."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from bench.cell import AttackCell
from bench.leaderboard.conditions import by_condition, condition_key, of_one_series, sort_key
from bench.leaderboard.worst import WorstCase, clusters
from bench.record.metrics import COMPARED
from bench.record.names import entry_text
from bench.record.schema import Record
from bench.scoring.intervals import paired_difference


@dataclass(frozen=True, slots=True, kw_only=True)
class KnowledgeRow:
    """Comparison of attackers with and without knowledge of a defense, at an interception point: the joint results of
    all attacks that ran both plain (without knowledge) and adaptive (with the defense's description)."""

    condition: str
    """The condition in words: data, model, weights and federated setting."""
    defense: str
    """The defense with its parameters, as text, such as `prune(share=0.7)`; `none`: undefended."""
    point: str
    """Interception point: `type-2`, `type-1`, `type-0` or `aggregate`."""
    plain: WorstCase
    """Results of the attacks without knowledge of the defense; an example counts if any attack reconstructs it."""
    adaptive: WorstCase
    """Results of the same attacks with the defense's public description."""
    undescribed: bool
    """True if the defense has no description; the adaptive attacks then equal the plain attacks."""
    black_box: WorstCase | None = None
    """Results of attacks that simulate the defense; None without such an attack."""

    @property
    def change(self) -> tuple[float, float, float] | None:
        """The attackers' gain from knowledge: the success rate with the defense's description (adaptive) minus the rate
        without (plain), on common examples. The result is (difference, low, high), with the ends of the 95 % interval;
        None without common examples."""
        common = [key for key in self.plain.leaked if key in self.adaptive.leaked]
        if not common:
            return None
        after, before = ([worst.leaked[key] for key in common] for worst in (self.adaptive, self.plain))
        return paired_difference(after, before, clusters=clusters(common))

    def json(self) -> dict[str, Any]:
        """Return this comparison as a dictionary of JSON types, for export: the figures of attackers with and without
        knowledge of the defense, and `change`, their difference."""
        return {
            "condition": self.condition,
            "defense": self.defense,
            "point": self.point,
            "change": self.change,
            "plain": _figures(self.plain),
            "adaptive": _figures(self.adaptive),
            "undescribed": self.undescribed,
            "black_box": None if self.black_box is None else _figures(self.black_box),
        }


def knowledge(records: Iterable[Record]) -> list[KnowledgeRow]:
    """Compare attacks with and without knowledge of the defense: a row for each condition, defense and interception
    point at which an attack was run both plain and adaptive (with the defense's description). `records` are the results
    of experiments.

    Rows are sorted by condition, undefended rows first. An attack is left out if its plain or its adaptive cell
    (configured run) is not applicable (status n/a), or is part of a cascade, in which cells get different readings
    (observed updates)."""
    by_kind: dict[str, dict[tuple[str, ...], list[Record]]] = {"plain": {}, "adaptive": {}, "black-box": {}}
    listed = of_one_series(records)
    cascades = {before for record in listed for before in getattr(record.cell, "after", ())}
    for record in listed:
        cell = record.cell
        if isinstance(cell, AttackCell) and (cell.after or cell.id in cascades):
            continue
        if isinstance(cell, AttackCell) and record.status != "n/a" and not cell.grants.gallery:
            key = (condition_key(record), entry_text(cell.defense), cell.point, entry_text(cell.attack))
            by_kind[cell.knowledge].setdefault(key, []).append(record)
    both = by_kind["plain"].keys() & by_kind["adaptive"].keys()
    plain, adaptive, black_box = (
        by_condition(record for key, same in by_key.items() if key in both or kind == "black-box" for record in same)
        for kind, by_key in by_kind.items()
    )
    beside = {condition.key: condition.rows for condition in black_box}
    knowing = {condition.key: condition.rows for condition in adaptive}
    rows = [
        KnowledgeRow(
            condition=condition.title,
            defense=defense,
            point=point,
            plain=worst,
            adaptive=informed,
            undescribed=any(
                record.attack and not record.attack.conditions.described
                for records in informed.records.values()
                for record in records
            ),
            black_box=beside.get(condition.key, {}).get(defense, {}).get(point),
        )
        for condition in plain
        for defense, row in condition.rows.items()
        for point, worst in row.items()
        for informed in (knowing[condition.key][defense][point],)
    ]
    return sorted(rows, key=lambda row: (row.condition, sort_key(row.defense, row.point)))


def _figures(worst: WorstCase) -> dict[str, Any]:
    return {
        "asr": worst.asr,
        "interval": worst.interval,
        "lower_bound": worst.lower_bound,
        "best_attack": worst.best,
        "medians": {metric.name: worst.best_median(metric) for metric in COMPARED},
        "prior_psnr_db_median": worst.prior_psnr_db,
    }
