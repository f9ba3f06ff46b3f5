"""A defense's cost on a data set and model, from training records: accuracy, ε, time overhead and learning curve."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from bench.cell import TrainingCell
from bench.leaderboard.conditions import data_and_model
from bench.record.names import entry_text, setting_text
from bench.record.schema import Record, TrainingResult

UNDEFENDED = "none"
_SETTING = {"federated", "rounds", "until_round", "until_accuracy", "until_epsilon"}
_Done = tuple[Record, TrainingCell, TrainingResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class DefenseCost:
    """A defense's figures in training, pooled over seeds: accuracy, ε and time. None marks an unknown figure."""

    setting: str
    """Federated setting of the trainings in words, such as clients, batch size and rate."""
    seeds: int
    """Number of trainings, each with its seed."""
    accuracy: float | None
    """Median final test accuracy over seeds; a diverged training counts as 0."""
    loss: float | None
    """Accuracy lost: median over seeds of the undefended accuracy minus this defense's accuracy on the same seed."""
    epsilon: float | None
    """ε guaranteed for the released model, from the training with the most rounds; None without a guarantee."""
    delta: float | None
    """δ of the guarantee (ε, δ); None without a guarantee."""
    epsilon_unit: str | None
    """Protected unit of ε: `example` or `client`."""
    epsilon_adjacency: str | None
    """Relation between data sets that ε makes hard to distinguish, in words, such as "one client replaced"."""
    epsilon_absent: str | None
    """Reason for a missing ε."""
    overhead: float | None
    """Median over seeds: a client step's time divided by an undefended step's time, measured in the same process."""
    diverged: int
    """Number of diverged trainings."""
    curve: tuple[tuple[int, float], ...]
    """Learning curve: pairs (round, test accuracy averaged over seeds)."""
    epsilon_caveats: tuple[str, ...] = ()
    """Limits to this ε's validity, as text."""


def costs(records: Iterable[Record]) -> dict[tuple[str, str], DefenseCost]:
    """Return the cost of each defense in training, from `records` (results of experiments): a map from (data and model
    as JSON, defense) to its figures in a single federated setting.

    If a defense was trained in several settings, a setting with an undefended training is preferred, then the setting
    with the most local steps over all rounds."""
    trained: dict[tuple[str, str], dict[str, list[_Done]]] = {}
    for record in records:
        cell, result = record.cell, record.training
        if isinstance(cell, TrainingCell) and result is not None:
            setting = json.dumps(cell.model_dump(mode="json", include=_SETTING), sort_keys=True)
            settings = trained.setdefault((data_and_model(cell), entry_text(cell.defense)), {})
            settings.setdefault(setting, []).append((record, cell, result))
    chosen = {}
    for (task, defense), settings in trained.items():
        undefended = trained.get((task, UNDEFENDED), {})
        name = max(settings, key=lambda name: (name in undefended, _steps(settings[name][0][1]), name))
        chosen[task, defense] = _cost(settings[name], undefended.get(name, ()))
    return chosen


def _cost(done: Sequence[_Done], undefended: Sequence[_Done]) -> DefenseCost:
    base = {cell.seed: result.accuracy for _, cell, result in undefended}
    accuracies = {cell.seed: result.accuracy for _, cell, result in done}
    results = [result for _, _, result in done]
    longest = max(results, key=lambda result: result.rounds)
    spent = longest.privacy.released()
    cell = done[0][1]
    return DefenseCost(
        setting=f"{setting_text(cell.federated)} T={cell.rounds}",
        seeds=len(accuracies),
        accuracy=median(accuracies.values()),
        loss=middle(base[seed] - accuracy for seed, accuracy in accuracies.items() if seed in base),
        epsilon=longest.privacy.epsilon,
        delta=spent.delta if spent else None,
        epsilon_unit=spent.unit if spent else None,
        epsilon_adjacency=spent.adjacency if spent else None,
        epsilon_absent=longest.privacy.absent,
        epsilon_caveats=tuple(spent.caveats) if spent else (),
        overhead=middle(r.cost.training.overhead for r, _, _ in done if r.cost.training),
        diverged=sum(result.diverged for result in results),
        curve=_curve(results),
    )


def middle(values: Iterable[float | None]) -> float | None:
    """Return the median of those `values` that are not None; None if there is no such value."""
    there = [value for value in values if value is not None]
    return median(there) if there else None


def _curve(results: Iterable[TrainingResult]) -> tuple[tuple[int, float], ...]:
    by_round: dict[int, list[float]] = {}
    for result in results:
        for round_, accuracy in result.curve:
            by_round.setdefault(round_, []).append(accuracy)
    return tuple((round_, fmean(values)) for round_, values in sorted(by_round.items()))


def _steps(cell: TrainingCell) -> int:
    return cell.rounds * cell.federated.per_round * cell.federated.steps
