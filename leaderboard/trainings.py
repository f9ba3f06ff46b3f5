"""Training table: accuracy, ε and time under each defense, next to figures published in papers."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from bench.cell import TrainingCell
from bench.leaderboard.costs import middle
from bench.matrix.published import PublishedFigures, beside, row_json
from bench.record.names import entry_text, setting_text
from bench.record.schema import BayesianResult, Privacy, Record, TrainingResult

# Names of published figures that describe trainings.
_OF_TRAININGS = {"accuracy", "epsilon", "rounds", "milliseconds", "overhead"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRow:
    """Figures of a training configuration (data set, model, defense, setting), pooled over its seeds; None marks an
    unknown figure."""

    dataset: str
    """Name of the data set."""
    model: str
    """Name of the model."""
    defense: str
    """The defense with its parameters, as text, such as `prune(share=0.7)`; `none`: undefended."""
    setting: str
    """Federated setting in words, such as clients, batch size and rate."""
    length: str
    """Rounds, stop condition and Bayesian accounting in words, such as `T=100 until accuracy 0.9`."""
    seeds: int
    """Number of trainings, each with its seed."""
    accuracy: float | None
    """Median final test accuracy over seeds; a diverged training counts as 0."""
    least: float | None
    """Lowest final accuracy over the seeds."""
    most: float | None
    """Highest final accuracy over the seeds."""
    perplexity: float | None
    """Median final perplexity over seeds; None for classifiers."""
    diverged: int
    """Number of trainings that diverged (weights no longer finite)."""
    rounds: int | None
    """Median over seeds of the number of executed rounds."""
    epsilon: float | None
    """ε guaranteed for the released model, from the training with the most rounds; None without a guarantee."""
    epsilon_paper: float | None
    """ε computed as in the Fed-αCDP paper, for comparison; `epsilon` is the valid value."""
    epsilon_absent: str | None
    """Reason why `epsilon` is absent; None if `epsilon` exists."""
    caveats: tuple[str, ...]
    """Limits to the validity of both ε values, as text."""
    milliseconds: float | None
    """Milliseconds per client and local step, a median over seeds."""
    overhead: float | None
    """Time of a client's step divided by the time of an undefended step; both are measured alternately."""
    crashed: int
    """Number of trainings that ended with an error."""
    cells: tuple[str, ...]
    """Ids of the cells (experiments) pooled in this row."""
    bayesian: BayesianResult | None
    """Result of Bayesian privacy accounting; None if not requested."""
    published: PublishedFigures | None
    """Figures from a paper for these cells; None without such figures."""

    def json(self) -> dict[str, Any]:
        """Return this training's figures as a dictionary of JSON types, for export: a key for each field."""
        return {**row_json(self), "bayesian": self.bayesian and asdict(self.bayesian)}


def trainings(records: Iterable[Record], published: Sequence[PublishedFigures] = ()) -> list[TrainingRow]:
    """Return the training table: a row for each training configuration, pooled over seeds, sorted by data set, setting
    and defense.

    - `records`: results of experiments; attacks are skipped.
    - `published`: figures from papers, attached to the matching rows."""
    gathered: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        cell = record.cell
        if isinstance(cell, TrainingCell) and record.status != "n/a":
            names = (
                entry_text(cell.dataset),
                entry_text(cell.model),
                entry_text(cell.defense),
                setting_text(cell.federated),
            )
            gathered.setdefault((*names, " ".join(_length(cell))), []).append(record)
    rows = [_row(key, same, published) for key, same in gathered.items()]
    return sorted(
        rows, key=lambda r: (*map(_natural, (r.dataset, r.setting)), r.defense != "none", _natural(r.defense))
    )


def missing(rows: Sequence[TrainingRow], published: Sequence[PublishedFigures]) -> list[PublishedFigures]:
    """Return the figures from papers, `published`, that match no training in `rows`: no table row shows them, so a
    report must list them separately."""
    shown = {id(row.published) for row in rows}
    return [
        figures
        for figures in published
        if _OF_TRAININGS & set(figures.figures) and id(figures) not in shown and "attack" not in figures.where
    ]


def _length(cell: TrainingCell) -> Iterator[str]:
    yield f"T={cell.rounds}"
    if cell.until_round:
        yield f"until round {cell.until_round}"
    if cell.until_accuracy:
        yield f"until accuracy {cell.until_accuracy:g}"
    if cell.until_epsilon:
        yield f"until epsilon {cell.until_epsilon:g}"
    if bayesian := cell.bayesian:
        words: list[str] = [*bayesian.levels, *([bayesian.instances] if "instance" in bayesian.levels else [])]
        words += ["as printed"] if bayesian.formula == "paper" else []
        words += ["masked"] if bayesian.masked else []
        yield f"Bayesian {' '.join(words)} δ={bayesian.delta:g}"


def _natural(text: str) -> list[tuple[float, str]]:
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return [(float(part), "") if n % 2 else (0.0, part) for n, part in enumerate(parts)]


def _row(key: tuple[str, ...], records: Sequence[Record], published: Sequence[PublishedFigures]) -> TrainingRow:
    # Trainings with different test intervals but equal seeds are the same training.
    records = list({record.cell.seed: record for record in records}.values())
    results = [record.training for record in records if record.training is not None]
    accuracies = [result.accuracy for result in results]
    longest = max(results, key=lambda result: result.rounds, default=None)  # spent the largest ε
    privacy = longest.privacy if longest else Privacy()
    paper = privacy.by("paper")
    times = [record.cost.training for record in records if record.training and record.cost.training]
    dataset, model, defense, setting, length = key
    return TrainingRow(
        dataset=dataset,
        model=model,
        defense=defense,
        setting=setting,
        length=length,
        seeds=len(records),
        accuracy=middle(accuracies),
        least=min(accuracies, default=None),
        most=max(accuracies, default=None),
        perplexity=middle(result.perplexity for result in results),
        diverged=sum(result.diverged for result in results),
        rounds=int(median(result.rounds for result in results)) if results else None,
        epsilon=privacy.epsilon,
        epsilon_paper=paper.epsilon if paper else None,
        epsilon_absent=privacy.absent,
        caveats=tuple(dict.fromkeys(_caveats(longest))),
        milliseconds=middle(cost.milliseconds_per_step for cost in times),
        overhead=middle(cost.overhead for cost in times),
        crashed=len(records) - len(results),
        cells=tuple(sorted(record.id for record in records)),
        bayesian=longest.bayesian if longest else None,
        published=beside(published, records[0].cell),
    )


def _caveats(result: TrainingResult | None) -> Iterator[str]:
    if result is not None:
        for shown in (result.privacy.released(), result.privacy.by("paper")):
            yield from shown.caveats if shown else ()
        for figure in result.bayesian.spent.values() if result.bayesian else ():
            yield from figure.caveats
