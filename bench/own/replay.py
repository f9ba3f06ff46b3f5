"""Replays: a client's update computed again on the true examples, as declared or under a possible mistake."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from bench.attacks.objective.distance import Distance
from bench.attacks.objective.mismatch import Mismatch, observations
from bench.gradients import one_hot
from bench.own.likeness import likeness
from bench.trip import Reading

Tensors = Mapping[str, Tensor]
_BISECTIONS = 7


def replayed(reading: Reading, inputs: Tensor, labels: Tensor, draw: int = 0) -> dict[str, Tensor]:
    """Return the update of the declared protocol on the true examples, name → (reading, *shape), in gradient units.
    `inputs` (reading, example, *shape) and `labels` (reading, example) are the distinct examples. The first epoch keeps
    their order; `draw` seeds the order of later epochs."""
    distinct, generator = inputs.shape[1], torch.Generator().manual_seed(draw)
    passes = [torch.arange(distinct)]
    passes += [torch.randperm(distinct, generator=generator) for _ in range(-(-reading.examples // distinct) - 1)]
    at = torch.cat(passes)[: reading.examples]
    mismatch = Mismatch(
        reading=reading, distance=Distance(kind="l2"), unrolled=reading.steps > 1 and reading.senders == 1
    )
    shown = mismatch.simulated(
        observations(reading)[0], inputs[:, at], one_hot(labels[:, at], reading.classes, inputs.dtype)
    )
    return {name: value.detach() for name, value in shown.items()}


def moved_by(reading: Reading, raw: Tensors, rate: float, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Replay at the weights before a step of `rate` along the update `raw`: name → (reading, *shape). `inputs` and
    `labels` are the true examples."""
    rows = []
    for row in range(len(reading)):
        weights = {name: value + rate * raw[name][row] for name, value in reading.weights.items()}
        rows.append(replayed(replace(reading, weights=weights), inputs, labels))
    return {name: torch.stack([each[name][row] for row, each in enumerate(rows)]) for name in raw}


def best_rate(sent: Tensors, by_rate: Callable[[float], dict[str, Tensor]], declared: float) -> tuple[float, float]:
    """Return the learning rate whose replay `by_rate(rate)` has the highest cosine with the update `sent`, in the worst
    reading, and this cosine. The search starts from powers of ten and the `declared` rate."""

    def reached(rate: float) -> float:
        return likeness(sent, by_rate(rate)).least[0]

    cosines = {rate: reached(rate) for rate in (*(10.0**n for n in range(-4, 2)), declared)}
    best, factor = max(cosines, key=cosines.__getitem__), 10**0.5
    for _ in range(_BISECTIONS):
        for rate in (best / factor, best * factor):
            cosines[rate] = reached(rate)
        best, factor = max(cosines, key=cosines.__getitem__), factor**0.5
    return best, cosines[best]


def trained_in_training_mode(reading: Reading, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return gradients on `inputs` and `labels` with BatchNorm on batch statistics; dropout stays off. The result is
    name → (reading, *shape)."""
    model = copy.deepcopy(reading.model)
    for layer in model.modules():
        layer.training = "BatchNorm" in type(layer).__name__
    weights = {name: value[0].detach().clone().requires_grad_() for name, value in reading.weights.items()}
    rows = []
    for x, y in zip(inputs, labels, strict=True):
        try:
            loss = F.cross_entropy(functional_call(model, weights, (x,)), y)
        except ValueError:  # a single value per channel has no batch statistics
            return {name: torch.zeros_like(value).expand(len(inputs), *value.shape) for name, value in weights.items()}
        rows.append(torch.autograd.grad(loss, list(weights.values()), allow_unused=True, materialize_grads=True))
    return {name: torch.stack([row[n] for row in rows]) for n, name in enumerate(weights)}
