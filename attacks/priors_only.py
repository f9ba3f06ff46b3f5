"""Attacks that ignore the gradient, or read only the label off it: prior-only baselines for all others."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.attacks.base import Attack
from bench.attacks.labels.infer import infer_labels
from bench.attacks.objective.mismatch import observations
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction, Status


@dataclass(frozen=True, kw_only=True)
class MeanPicture(Attack):
    """Always the mean of the public split."""

    reference = "prior-only baseline"
    iterative = False

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        del budget, key
        return claim(reading, reading.public_mean.expand(len(reading), reading.examples, *reading.shape))


@dataclass(frozen=True, kw_only=True)
class NearestPublic(Attack):
    """Always the public example nearest to the mean."""

    reference = "prior-only baseline"
    iterative = False

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        del budget, key
        distances = (reading.public_inputs - reading.public_mean).flatten(1).square().sum(1)
        nearest = reading.public_inputs[distances.argmin()]
        return claim(reading, nearest.expand(len(reading), reading.examples, *reading.shape))


@dataclass(frozen=True, kw_only=True)
class ClassMean(Attack):
    """The public mean of the class that is read off the last layer's gradient."""

    reference = "label-only baseline: Zhao et al. 2020 (label), Wainakh et al. 2021 (batches)"
    iterative = False

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        del budget, key
        labels = infer_labels(reading, observations(reading)[0])
        means = torch.stack([_class_mean(reading, label) for label in range(reading.classes)])
        return claim(reading, means[labels.clamp_min(0)], labels)


def _class_mean(reading: Reading, label: int) -> Tensor:
    examples = reading.public_inputs[reading.public_labels == label]
    return examples.mean(0) if len(examples) else reading.public_mean


def claim(reading: Reading, inputs: Tensor, labels: Tensor | None = None) -> Reconstruction:
    """A reconstruction from `inputs` (reading, example, *shape) and `labels` (reading, example), -1 without them;
    loss and evaluations are 0."""
    ok: Status = "ok"
    none = torch.zeros(len(reading), dtype=torch.long)
    return Reconstruction(
        inputs=inputs.clone(),
        labels=torch.full((len(reading), reading.examples), -1) if labels is None else labels,
        loss=torch.zeros(len(reading)),
        evaluations=none,
        outer=none,
        restarts=none,
        status=(ok,) * len(reading),
    )
