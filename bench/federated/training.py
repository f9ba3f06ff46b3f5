"""A plain multi-round training over the one pipeline: curve, checkpoints, final accuracy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from bench import rng
from bench.cell import TrainingCell
from bench.datasets.base import Data, Split
from bench.federated.pipeline import run_round, server_step
from bench.federated.stages import Moment, Stages
from bench.victims import local_batches

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """`curve` (round, accuracy on test examples); `checkpoints` round → weights; `weights` at the end."""

    curve: tuple[tuple[int, float], ...]
    checkpoints: Mapping[int, dict[str, Tensor]]
    weights: dict[str, Tensor]
    diverged: bool


def train(
    cell: TrainingCell, data: Data, clients: NDArray[np.int64], model: nn.Module, weights: Tensors,
    stages: Stages,
    progress: Callable[[int, float | None], None] = lambda round_, accuracy: None,
) -> Trained:  # fmt: skip
    """T rounds of K clients each, from `weights`; accuracy every `test_every` rounds and at the end.

    `clients` (client, example) indexes the training split.

    Weights that are no longer finite end the training: that is a result, not a crash.
    """
    current = dict(weights)
    checkpoints = {0: current} if 0 in cell.checkpoints else {}
    curve = [(0, accuracy(model, current, data.test, cell.test_examples))]
    for round_ in range(cell.rounds):
        drawn = rng.generator(cell.seed, "participants", round_).permutation(cell.federated.clients)
        chosen = tuple(int(c) for c in np.sort(drawn[: cell.federated.per_round]))
        batches, _ = local_batches(cell, data, clients, chosen, round_)
        taps = run_round(
            model, current, batches, cell.federated, stages,
            Moment(seed=cell.seed, draw=0, round=round_), classes=data.classes,
        )  # fmt: skip
        stages = taps.stages
        current = server_step(current, taps.shown["aggregate"], cell.federated)
        done = round_ + 1
        if not all(torch.isfinite(value).all() for value in current.values()):
            return Trained(curve=tuple(curve), checkpoints=checkpoints, weights=current, diverged=True)
        if done in cell.checkpoints:
            checkpoints[done] = current
        tested = done % cell.test_every == 0 or done == cell.rounds
        if tested:
            curve.append((done, accuracy(model, current, data.test, cell.test_examples)))
        progress(done, curve[-1][1] if tested else None)
    return Trained(curve=tuple(curve), checkpoints=checkpoints, weights=current, diverged=False)


def accuracy(model: nn.Module, weights: Tensors, test: Split, examples: int) -> float:
    """Share of the first `examples` test examples that are classified right."""
    count = min(examples, len(test))
    inputs = torch.from_numpy(test.floats(slice(0, count)))
    right = 0
    with torch.no_grad():
        for start in range(0, count, 500):
            logits = functional_call(model, dict(weights), (inputs[start : start + 500],))
            right += int((logits.argmax(-1).numpy() == test.labels[start : start + 500][: len(logits)]).sum())
    return right / count
