"""Matching objective: observations, and their distance to the gradients of candidate examples."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.attacks.objective.distance import Distance
from bench.attacks.objective.local import unrolled_update
from bench.gradients import group_gradients
from bench.trip import Candidates, Reading

Tensors = Mapping[str, Tensor]


def observations(reading: Reading) -> list[dict[str, Tensor]]:
    """Observations as gradients, each name → (reading, *shape), in gradient units.

    An update over L steps, w_0 - w_L = η Σ g, counts as the mean gradient, which is exact at L = 1. Observations under
    the same weights are averaged, since their mean is sufficient, unless the description says that more than added
    noise is random.
    """
    scale = 1 / (reading.unit * reading.steps)
    values = {name: value * scale for name, value in reading.values.items()}
    if same_weights(reading) and (reading.description is None or reading.description.additive):
        return [{name: value.mean(1) for name, value in values.items()}]
    return [{name: value[:, n] for name, value in values.items()} for n in range(len(reading.rounds))]


def mean_observation(observed: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Mean over observations, name → (reading, *shape)."""
    return {name: torch.stack([each[name] for each in observed]).mean(0) for name in observed[0]}


def by_likelihood(distance: Distance, reading: Reading) -> Distance:
    """Distance matched to the described noise. L2 becomes L1, Laplace noise's log likelihood, for a single observation
    with Laplace noise only. Coordinates are scaled by their noise deviation if deviations differ."""
    if reading.description is None:
        return distance
    noise = reading.description.noise
    laplace = noise.law == "laplace" and noise.variance > 0 and len(reading.rounds) == 1
    kind = "l1" if distance.kind == "l2" and laplace else distance.kind
    return replace(distance, kind=kind, variances=noise.variances, variance=noise.variance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Mean distance between the observations and simulated readings of candidates."""

    reading: Reading
    distance: Distance
    unrolled: bool = False
    """Simulate each local step instead of the mean over steps."""
    exact: bool = False
    """Return minus the described log density, any sign, if the description has a density."""

    def __call__(
        self, observed: list[dict[str, Tensor]], inputs: Tensor, targets: Tensor, *, differentiable: bool
    ) -> Tensor:
        """Distance (reading,) to `observed`, each name → (reading, *shape). `inputs` (reading, example, *shape),
        `targets` (reading, example, class)."""
        reading = self.reading
        total = torch.zeros(len(inputs), dtype=inputs.dtype, device=inputs.device)
        shared = len(observed) > 1 and same_weights(reading)
        gradients = None
        for number, target in enumerate(observed):
            weights = {name: value[number] for name, value in reading.weights.items()}
            if gradients is None or not shared:
                gradients = self._gradients(weights, target, inputs, targets, differentiable)
            simulated = self._as_shown(gradients, target, Candidates(inputs=inputs, targets=targets, weights=weights))
            total = total + self.of_shown(simulated, target)
        return total / len(observed)

    def simulated(self, observed: Tensors, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Simulated first observation of candidates, name → (reading, *shape)."""
        weights = {name: value[0] for name, value in self.reading.weights.items()}
        gradients = self._gradients(weights, observed, inputs, targets, False)
        return self._as_shown(gradients, observed, Candidates(inputs=inputs, targets=targets, weights=weights))

    def shown(self, observed: Tensors, gradients: Tensors, candidates: Candidates | None = None) -> dict[str, Tensor]:
        """Simulated observation from known gradients after a single local step, name → (reading, *shape).

        `gradients` under the first weights, name → (reading, example, *shape). `candidates` are needed if the defense
        acts inside the step.
        """
        description = self.reading.description
        if description is not None and description.inside_steps:
            return self._as_shown(dict(gradients), observed, candidates)
        senders = 1 if description is None else description.senders
        means = {name: v.unflatten(1, (senders, -1)).mean(2) for name, v in gradients.items()}
        if description is None:
            return {name: v[:, 0] for name, v in means.items()}
        return self._as_shown(means, observed, candidates)

    def _as_shown(
        self, gradients: dict[str, Tensor], observed: Tensors, candidates: Candidates | None
    ) -> dict[str, Tensor]:
        """Gradients from `_gradients` after the described defense."""
        description = self.reading.description
        if description is None:
            return gradients
        if self.unrolled or not description.inside_steps:
            return description.sent(gradients, observed)
        return description.simulate(gradients, observed, candidates)

    def _gradients(
        self, weights: Tensors, observed: Tensors, inputs: Tensor, targets: Tensor, differentiable: bool
    ) -> dict[str, Tensor]:
        """Gradients of candidates in the description's format. Without a description the mean, name → (reading,
        *shape); with a description each client's message, (reading, client, *shape); with a defense inside local steps
        each example's gradient, (reading, example, *shape)."""
        reading, description = self.reading, self.reading.description
        model = reading.model
        if self.unrolled:
            inside = description is not None and description.inside_steps
            update = unrolled_update(
                model,
                weights,
                inputs,
                targets,
                steps=reading.steps,
                rate=reading.rate,
                batches=reading.batches,
                momentum=reading.momentum,
                weight_decay=reading.weight_decay,
                between=description.local_steps(observed) if description is not None and inside else None,
            )
            return update if description is None else {name: v[:, None] for name, v in update.items()}
        if description is None:
            return group_gradients(model, weights, inputs, targets, differentiable=differentiable)
        rows = inputs.shape[1] if description.inside_steps else description.senders
        x, y = (value.unflatten(1, (rows, -1)).flatten(0, 1) for value in (inputs, targets))
        flat = group_gradients(model, weights, x, y, differentiable=differentiable)
        return {name: value.unflatten(0, (len(inputs), rows)) for name, value in flat.items()}

    def of_shown(self, simulated: Tensors, observed: Tensors) -> Tensor:
        """Distance (reading,), or -2v log p if the defense's draws have a likelihood."""
        description = self.reading.description
        if description is not None and self.exact and len(self.reading.rounds) == 1:
            density = description.log_density(simulated, observed)
            if density is not None:
                return -density
        if description is not None and self.distance.kind != "cosine" and len(self.reading.rounds) == 1:
            likelihood = description.log_likelihood(simulated, observed)
            if likelihood is not None:
                return -2 * description.noise.variance * likelihood
        return self.distance(simulated, observed)


def same_weights(reading: Reading) -> bool:
    """Whether all observations have the same weights."""
    return len(reading.rounds) == 1 or all(bool((value == value[:1]).all()) for value in reading.weights.values())
