"""Attack table: success and cost for each attack on each data set, next to figures published in papers."""

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
    """An attack's figures on a data set, against a defense at an interception point (the attacker's position in a
    round). None marks an unknown figure."""

    title: str
    """The shared configuration in words: model, weights, setting and grants (extra knowledge of the attacker)."""
    dataset: str
    """Name of the data set."""
    attack: str
    """The attack with its parameters and its knowledge of the defense, as text."""
    defense: str
    """The defense with its parameters, as text, such as `prune(share=0.7)`; `none`: undefended."""
    point: str
    """Interception point: `type-2`, `type-1`, `type-0` or `aggregate`."""
    examples: int
    """Number of attacked examples."""
    asr: float | None
    """Attack success rate; in a cascade, over the examples that earlier attacks did not reconstruct."""
    interval: tuple[float, float] | None
    """95 % interval for `asr`; None if `asr` is unknown."""
    medians: dict[str, float | None]
    """Map from metric name to the median over examples, with the worst value for a failed attack; None in a cascade,
    because later attacks saw only the failures of earlier attacks."""
    rmse_of_successes: float | None
    """Median root mean square error over the reconstructed examples, in units of the data's range."""
    prior_psnr_db: float | None
    """Median over examples of the highest PSNR in dB among the prior-only baselines; None without a baseline."""
    evaluations: float | None
    """Median number of gradient evaluations per reading (observed update)."""
    outer: float | None
    """Median number of iterations per reading, counted as in the attack's paper; an iteration may have several
    evaluations."""
    diverged: float | None
    """Share of examples on which the attack diverged."""
    crashed: int
    """Number of crashed cells (experiment configurations)."""
    cells: tuple[str, ...]
    """Ids of the cells (experiments) pooled in this row."""
    published: PublishedFigures | None
    """Figures from a paper for these cells; None without such figures."""

    def json(self) -> dict[str, Any]:
        """Return this row's figures as a dictionary of JSON types, for export: a key for each field."""
        return row_json(self)


def attacks(records: Iterable[Record], published: Sequence[PublishedFigures] = ()) -> list[AttackRow]:
    """Return the attack table: a row for each attack, data set, defense and interception point, sorted by name. Figures
    are pooled over seeds and noise draws.

    - `records`: results of experiments.
    - `published`: figures from papers, shown next to the matching rows.

    An attack that is not applicable (status n/a) has no row. A crashed cell (experiment) counts in `crashed` and in no
    other figure."""
    gathered: dict[tuple[str, ...], list[Record]] = {}
    for record in of_one_series(records):
        cell = record.cell
        if isinstance(cell, AttackCell) and record.status != "n/a" and not cell.grants.gallery:
            key = (condition_key(record), attack_name(cell), entry_text(cell.defense), cell.point)
            gathered.setdefault(key, []).append(record)
    listed = [record for same in gathered.values() for record in same]
    # A condition's title starts with its data set; the rest names all other differences.
    titles = {condition.key: condition.title.partition(" · ")[2] for condition in by_condition(listed)}
    rows = [_row(titles[key[0]], same, published) for key, same in gathered.items()]
    return sorted(rows, key=lambda row: (row.title, row.dataset, sort_key(row.defense, row.point), row.attack))


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
        # in a cascade, medians would describe only the hard readings left to an attack
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
