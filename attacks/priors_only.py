"""Prior-only baselines: attacks that ignore the gradient, or infer only the label from the gradient."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.attacks.base import Attack, closed_form
from bench.attacks.labels.infer import infer_labels
from bench.attacks.objective.mismatch import observations
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction


@dataclass(frozen=True, kw_only=True)
class MeanPicture(Attack):
    """Answer every reading (observed update) with the mean of the public examples. The attack ignores the gradient; it
    is a baseline."""

    reference = "prior-only baseline"
    iterative = False

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        return closed_form(reading, reading.public_mean.expand(len(reading), reading.examples, *reading.shape))


@dataclass(frozen=True, kw_only=True)
class NearestPublic(Attack):
    """Answer every reading (observed update) with the public example nearest to the mean of the public examples. The
    attack ignores the gradient; it is a baseline."""

    reference = "prior-only baseline"
    iterative = False

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        distances = (reading.public_inputs - reading.public_mean).flatten(1).square().sum(1)
        nearest = reading.public_inputs[distances.argmin()]
        return closed_form(reading, nearest.expand(len(reading), reading.examples, *reading.shape))


@dataclass(frozen=True, kw_only=True)
class ClassMean(Attack):
    """Infer the label from the last layer's gradient, and answer with the mean of the public examples of this label.
    The attack is a baseline."""

    reference = "label-only baseline: Zhao et al. 2020 (label), Wainakh et al. 2021 (batches)"
    iterative = False

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        labels = infer_labels(reading, observations(reading)[0])
        means = torch.stack([_class_mean(reading, label) for label in range(reading.classes)])
        return closed_form(reading, means[labels.clamp_min(0)], labels)


def _class_mean(reading: Reading, label: int) -> Tensor:
    examples = reading.public_inputs[reading.public_labels == label]
    return examples.mean(0) if len(examples) else reading.public_mean
