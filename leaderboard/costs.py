"""Training records → what a defense costs on a data set and model: accuracy, ε, overhead, learning curve."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from bench.leaderboard.blocks import entry
from bench.record.store import Record

UNDEFENDED = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One defense's training, over its seeds.

    `accuracy` is the median at the end (a diverged training counts 0), `loss` the median over seeds of what
    the undefended training of the same seed and setting has above it; `epsilon` the tight one of the released
    model, of the training that spent most; `overhead` the time of a client's step over the undefended one's,
    in the same process; `curve` (round, mean test accuracy).  None: no such figure, for `epsilon` with its
    reason in `epsilon_absent`.
    """

    setting: str
    seeds: int
    accuracy: float | None
    loss: float | None
    epsilon: float | None
    delta: float | None
    epsilon_unit: str | None
    epsilon_absent: str | None
    overhead: float | None
    diverged: int
    curve: tuple[tuple[int, float], ...]


def costs(records: Iterable[Record]) -> dict[tuple[str, str], Cost]:
    """(what was trained on, defense) → its cost, for the keys of `trained_on`.

    A defense trained in several federated settings is shown in the one with an undefended training beside it,
    of those in the one with the most local steps in all: a row has one accuracy, and `setting` says whose.
    """
    found: dict[tuple[str, str], dict[str, list[Record]]] = {}
    for record in records:
        cell = record.cell
        if cell.get("kind") == "training" and record.status == "done":
            settings = found.setdefault((trained_on(cell), entry(cell["defense"])), {})
            settings.setdefault(_setting(cell), []).append(record)
    return {
        (where, defense): _cost(
            *max(
                settings.items(),
                key=lambda item: (item[0] in found.get((where, UNDEFENDED), {}), _steps(item[1][0].cell), item[0]),
            ),
            found.get((where, UNDEFENDED), {}),
        )
        for (where, defense), settings in found.items()
    }  # fmt: skip


def trained_on(cell: Mapping[str, Any]) -> str:
    """What a training and an attack must share for one row: data and model."""
    return json.dumps([cell["dataset"], cell["model"]], sort_keys=True)


def _cost(setting: str, records: Sequence[Record], undefended: Mapping[str, Sequence[Record]]) -> Cost:
    plain = {record.cell["seed"]: float(record.summary["accuracy"]) for record in undefended.get(setting, ())}
    accuracies = {record.cell["seed"]: float(record.summary["accuracy"]) for record in records}
    losses = [plain[seed] - accuracy for seed, accuracy in accuracies.items() if seed in plain]
    longest = max((record.summary for record in records), key=lambda summary: int(summary.get("rounds", 0)))
    tight: Mapping[str, Any] = next(
        (one for one in longest.get("privacy", ()) if one["convention"] == "tight"), {}
    )
    overheads = [r.cost["overhead"] for r in records if r.cost.get("overhead") is not None]
    return Cost(
        setting=_said(records[0].cell), seeds=len(accuracies), accuracy=median(accuracies.values()),
        loss=median(losses) if losses else None, epsilon=longest.get("epsilon"), delta=tight.get("delta"),
        epsilon_unit=tight.get("unit"), epsilon_absent=longest.get("epsilon_absent"),
        overhead=median(overheads) if overheads else None,
        diverged=sum(bool(record.summary["diverged"]) for record in records), curve=_curve(records),
    )  # fmt: skip


def _curve(records: Sequence[Record]) -> tuple[tuple[int, float], ...]:
    by_round: dict[int, list[float]] = {}
    for record in records:
        for round_, accuracy in record.summary["curve"]:
            by_round.setdefault(int(round_), []).append(float(accuracy))
    return tuple((round_, fmean(values)) for round_, values in sorted(by_round.items()))


def _setting(cell: Mapping[str, Any]) -> str:
    asked = ("federated", "rounds", "until_accuracy", "until_epsilon")
    return json.dumps({name: cell.get(name) for name in asked}, sort_keys=True)


def _steps(cell: Mapping[str, Any]) -> int:
    federated = cell["federated"]
    return int(cell["rounds"] * federated["per_round"] * federated["steps"])


def _said(cell: Mapping[str, Any]) -> str:
    federated = cell["federated"]
    return (
        f"{federated['algorithm']} N={federated['clients']} K={federated['per_round']} T={cell['rounds']} "
        f"L={federated['steps']} B={federated['batch']} {federated['partition']}"
    )
