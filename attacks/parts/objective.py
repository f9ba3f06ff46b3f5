"""The matching objective: the observations, and how far the gradients of candidate examples are from them."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.attacks.parts.distance import Distance
from bench.attacks.parts.local import unrolled_update
from bench.gradients import group_gradients
from bench.trip import Reading

Tensors = Mapping[str, Tensor]


def observations(reading: Reading) -> list[dict[str, Tensor]]:
    """Each observation as one gradient, name → (reading, *shape), in gradient units.

    An update over L steps, w_0 - w_L = η Σ g, is taken as the mean gradient: exact at L = 1.
    Observations under the same weights are averaged, as their mean holds all that they tell of the secret,
    unless the defense's description says that more than added noise is random.
    """
    scale = 1 / (reading.unit * reading.steps)
    values = {name: value * scale for name, value in reading.values.items()}
    if _same_weights(reading) and (reading.description is None or reading.description.additive):
        return [{name: value.mean(1) for name, value in values.items()}]
    return [{name: value[:, n] for name, value in values.items()} for n in range(len(reading.rounds))]


def mean_observation(observed: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several observations, name → (reading, *shape)."""
    return {name: torch.stack([each[name] for each in observed]).mean(0) for name in observed[0]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """The mean distance to the observations; `unrolled` simulates each local step instead of their mean."""

    reading: Reading
    distance: Distance
    unrolled: bool = False

    def __call__(
        self, observed: list[dict[str, Tensor]], inputs: Tensor, targets: Tensor, *, differentiable: bool
    ) -> Tensor:
        """`observed` each name → (reading, *shape), `inputs` (reading, example, *shape) and `targets`
        (reading, example, class) → (reading,)."""
        reading = self.reading
        total = torch.zeros(len(inputs), dtype=inputs.dtype, device=inputs.device)
        shared = len(observed) > 1 and _same_weights(reading)
        gradients = None
        for number, target in enumerate(observed):
            if gradients is None or not shared:
                weights = {name: value[number] for name, value in reading.weights.items()}
                gradients = self._gradients(weights, inputs, targets, differentiable)
            simulated = gradients
            if reading.description is not None:
                simulated = reading.description.simulate(gradients, target)
            total = total + self.distance(simulated, target)
        return total / len(observed)

    def _gradients(
        self, weights: Tensors, inputs: Tensor, targets: Tensor, differentiable: bool
    ) -> dict[str, Tensor]:
        """The mean gradient of the candidates, name → (reading, *shape); where the defense is described each
        candidate's, (reading, example, *shape), which the description maps to what is shown."""
        reading = self.reading
        if self.unrolled:
            update = unrolled_update(
                reading.model, weights, inputs, targets, steps=reading.steps, rate=reading.rate
            )
            return update if reading.description is None else {name: v[:, None] for name, v in update.items()}
        if reading.description is None:
            return group_gradients(reading.model, weights, inputs, targets, differentiable=differentiable)
        flat = group_gradients(
            reading.model, weights, inputs.flatten(0, 1)[:, None], targets.flatten(0, 1)[:, None],
            differentiable=differentiable,
        )  # fmt: skip
        return {name: value.unflatten(0, inputs.shape[:2]) for name, value in flat.items()}


def _same_weights(reading: Reading) -> bool:
    """Whether all observations were made under the same weights."""
    return all(bool((value == value[:1]).all()) for value in reading.weights.values())
