"""What a reading's observations tell of its gradient, in gradient units."""

import torch
from torch import Tensor

from bench.trip import Reading


def observations(reading: Reading) -> list[dict[str, Tensor]]:
    """Each observation as one gradient, name → (reading, *shape), in gradient units.

    An update over L steps, w_0 - w_L = η Σ g, is taken as the mean gradient: exact at L = 1.
    Observations under the same weights are averaged, as their mean holds all that they tell of the secret,
    unless the defense's description says that more than added noise is random.
    """
    scale = 1 / (reading.unit * reading.steps)
    values = {name: value * scale for name, value in reading.values.items()}
    if same_weights(reading) and (reading.description is None or reading.description.additive):
        return [{name: value.mean(1) for name, value in values.items()}]
    return [{name: value[:, n] for name, value in values.items()} for n in range(len(reading.rounds))]


def mean_observation(observed: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several observations, name → (reading, *shape)."""
    return {name: torch.stack([each[name] for each in observed]).mean(0) for name in observed[0]}


def same_weights(reading: Reading) -> bool:
    """Whether all observations were made under the same weights."""
    return all(bool((value == value[:1]).all()) for value in reading.weights.values())
