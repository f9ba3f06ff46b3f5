"""Attack rows: success and cost on each data set, with published figures."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from bench.cell import AttackCell
from bench.leaderboard.conditions import by_condition, condition_key, of_one_series, sort_key
from bench.leaderboard.worst import example_scores, median_of, share_interval
from bench.matrix.published import PublishedFigures, beside, row_json
from bench.record.metrics import COMPARED, RMSE
from bench.record.names import attack_name, dataset_name, entry_text
from bench.record.schema import Record
from bench.scoring.summary import median


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackRow:
    """An attack on a data set, against a defense at a point.  None: no figure."""

    title: str
    """Shared configuration: all but data set, attack, defense, point."""
    dataset: str
    attack: str
    defense: str
    point: str
    examples: int
    asr: float | None
    """In a cascade: success over the remaining examples."""
    interval: tuple[float, float] | None
    medians: dict[str, float | None]
    """Metric → median, failures worst; empty in a cascade."""
    rmse_of_successes: float | None
    """Over leaked examples."""
    prior_psnr_db: float | None
    evaluations: float | None
    """Median over readings."""
    outer: float | None
    """Median over readings."""
    diverged: float | None
    """Share of examples."""
    crashed: int
    cells: tuple[str, ...]
    """Record ids."""
    published: PublishedFigures | None

    def json(self) -> dict[str, Any]:
        return row_json(self)


def attacks(records: Iterable[Record], published: Sequence[PublishedFigures] = ()) -> list[AttackRow]:
    """A row for each attack, data set, defense and point, seeds and draws pooled; by name, no defense first.

    Attacks with status n/a have no row.  Crashed cells are counted, without figures.
    """
    listed = [record for record in of_one_series(records) if record.status != "n/a" and not _has_gallery(record)]
    gathered: dict[tuple[str, ...], list[Record]] = {}
    for record in listed:
        cell = record.cell
        if isinstance(cell, AttackCell):
            key = (condition_key(record), attack_name(cell), entry_text(cell.defense), cell.point)
            gathered.setdefault(key, []).append(record)
    # A condition's title starts with its data set; what follows tells apart all else that differs.
    titles = {condition.key: condition.title.partition(" · ")[2] for condition in by_condition(listed)}
    rows = [_row(titles[key[0]], same, published) for key, same in gathered.items()]
    return sorted(rows, key=lambda row: (row.title, row.dataset, sort_key(row.defense, row.point), row.attack))


def _has_gallery(record: Record) -> bool:
    return isinstance(record.cell, AttackCell) and bool(record.cell.grants.gallery)


def _row(title: str, records: Sequence[Record], published: Sequence[PublishedFigures]) -> AttackRow:
    cell = records[0].cell
    assert isinstance(cell, AttackCell)
    results = [record.attack for record in records if record.attack is not None]
    readings = [reading for result in results for reading in result.readings]
    scores = {key: example for record in records for key, example in example_scores(record)}
    hits = {key: example.success for key, example in scores.items()}
    examples = list(scores.values())
    cascade = any(isinstance(record.cell, AttackCell) and record.cell.after for record in records)
    return AttackRow(
        title=title,
        dataset=dataset_name(cell),
        attack=attack_name(cell),
        defense=entry_text(cell.defense),
        point=cell.point,
        examples=len(hits),
        asr=sum(hits.values()) / len(hits) if hits else None,
        interval=share_interval(hits),
        # of what a cascade left an attack, medians say how hard that was
        medians={metric.name: None if cascade else median_of(examples, metric) for metric in COMPARED},
        rmse_of_successes=median_of([example for example in examples if example.success], RMSE),
        prior_psnr_db=median([example.prior_db for example in examples], -inf),
        evaluations=median([reading.evaluations for reading in readings], inf),
        outer=median([reading.outer for reading in readings], inf),
        diverged=float(np.mean([e.status == "diverged" for e in examples])) if examples else None,
        crashed=len(records) - len(results),
        cells=tuple(sorted(record.id for record in records)),
        published=beside(published, cell),
    )
