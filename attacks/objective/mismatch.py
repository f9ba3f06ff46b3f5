"""Matching objective: a reading's observations, and their distance to the gradients of candidate examples."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.attacks.objective.distance import Distance
from bench.attacks.objective.local import unrolled_update
from bench.attacks.objective.statistics import statistics_gap, watched
from bench.gradients import group_gradients
from bench.trip import Candidates, Reading, Tensors

_STATISTICS = 1.0  # of a zero gradient's distance: weight of the statistics' distance


def observations(reading: Reading) -> list[dict[str, Tensor]]:
    """Return the observations (repeated reports on the same victims) in the batch `reading` as gradients, each name →
    (reading, *shape).

    An update over L local steps, w_0 - w_L = η Σ g with the learning rate η, counts as the mean gradient: exact at L =
    1. Observations under the same weights are averaged, because their mean is a sufficient statistic. If the defense's
    description has randomness other than added noise, all observations are kept."""
    scale = 1 / (reading.unit * reading.steps)
    values = {name: value * scale for name, value in reading.values.items()}
    if same_weights(reading) and (reading.description is None or reading.description.additive):
        return [{name: value.mean(1) for name, value in values.items()}]
    return [{name: value[:, n] for name, value in values.items()} for n in range(len(reading.rounds))]


def by_weights(reading: Reading) -> list[Reading]:
    """Split the batch `reading` into a reading for each round if the rounds have different weights; attacks then read
    each round separately. With equal weights the batch is returned unchanged as the only item."""
    return [reading] if same_weights(reading) else by_round(reading)


def by_round(reading: Reading) -> list[Reading]:
    """Split the batch `reading` by rounds: each result has a single observation, and its round's description."""
    return [
        replace(
            reading,
            description=reading.descriptions[at] if reading.descriptions else reading.description,
            descriptions=(),
            values={name: value[:, at : at + 1] for name, value in reading.values.items()},
            weights={name: value[at : at + 1] for name, value in reading.weights.items()},
            rounds=reading.rounds[at : at + 1],
            repeated_readings=1,
        )
        for at in range(len(reading.rounds))
    ]


def mean_observation(observed: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Average repeated reports on the same victims, to reduce a defense's noise: name → (reading, *shape). `observed`
    are the reports, each name → (reading, *shape)."""
    return {name: torch.stack([each[name] for each in observed]).mean(0) for name in observed[0]}


def by_likelihood(distance: Distance, reading: Reading) -> Distance:
    """Adapt `distance` to the noise that the defense's description in `reading` declares; without a description, return
    it unchanged.

    - For a single observation (report on the victims) with only Laplace noise, L2 becomes L1, the negative log
      likelihood of Laplace noise.
    - If the noise deviation differs between coordinates, each coordinate is divided by its deviation."""
    if reading.description is None:
        return distance
    noise = reading.description.noise
    laplace = noise.law == "laplace" and noise.variance > 0 and len(reading.rounds) == 1
    kind = "l1" if distance.kind == "l2" and laplace else distance.kind
    return replace(distance, kind=kind, variances=noise.variances, variance=noise.variance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Mean distance between the observations of a reading (repeated reports of an update) and the simulated
    observations that candidate examples would cause. An attack minimises this distance."""

    reading: Reading
    """The attacked readings."""
    distance: Distance
    """Distance between a simulated and an actual observation."""
    unrolled: bool = False
    """True simulates each local step; False takes a single gradient in place of the mean over steps."""
    exact: bool = False
    """True takes another distance: minus the observation's log density under the defense's description, if the
    description has a density. Such a distance may be negative."""

    def __call__(
        self, observed: list[dict[str, Tensor]], inputs: Tensor, targets: Tensor, *, differentiable: bool
    ) -> Tensor:
        """Return the distance (reading,) between candidates and the actual observations, for a candidate batch per
        reading. Known running statistics of BatchNorm add their distance.

        - `observed`: the observations, each name → (reading, *shape).
        - `inputs` (reading, example, *shape), `targets` (reading, example, class): candidates and their label
          probabilities.
        - `differentiable`: True keeps autograd's graph."""
        if self.reading.statistics is None:
            return self._of_gradients(observed, inputs, targets, differentiable)
        with watched(self.reading.model) as calls:
            distance = self._of_gradients(observed, inputs, targets, differentiable)
        gap = statistics_gap(self.reading, calls, simulated_steps=self.reading.steps if self.unrolled else 1)
        return distance + _STATISTICS * self.distance.of_zero(observed[0]) * gap

    def _of_gradients(
        self, observed: list[dict[str, Tensor]], inputs: Tensor, targets: Tensor, differentiable: bool
    ) -> Tensor:
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
        """Simulate the update that candidate examples would cause, at the first observation's weights and with the
        described defense: name → (reading, *shape). Comparison with the actual observation shows how well the
        candidates explain the reading.

        - `observed`: the actual observation (report on the victims), name → (reading, *shape); the simulation may take
          the defense's random draws from it.
        - `inputs` (reading, example, *shape), `targets` (reading, example, class): candidates and their label
          probabilities."""
        weights = {name: value[0] for name, value in self.reading.weights.items()}
        gradients = self._gradients(weights, observed, inputs, targets, False)
        return self._as_shown(gradients, observed, Candidates(inputs=inputs, targets=targets, weights=weights))

    def shown(self, observed: Tensors, gradients: Tensors, candidates: Candidates | None = None) -> dict[str, Tensor]:
        """Simulate the update after the defense from candidates' precomputed gradients, for a single local step: name →
        (reading, *shape).

        - `observed`: the actual observation (report on the victims), name → (reading, *shape); the simulation may take
          the defense's random draws from it.
        - `gradients`: the candidates' gradients under the first weights, name → (reading, example, *shape).
        - `candidates`: the candidates behind these gradients; needed only if the defense acts inside the step."""
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
        description = self.reading.description
        if description is None:
            return gradients
        if self.unrolled or not description.inside_steps:
            return description.sent(gradients, observed)
        return description.simulate(gradients, observed, candidates)

    def _gradients(
        self, weights: Tensors, observed: Tensors, inputs: Tensor, targets: Tensor, differentiable: bool
    ) -> dict[str, Tensor]:
        """Return candidates' gradients in the format that the description takes, name → the axes below.
        `differentiable` True keeps autograd's graph.

        - without a description: the mean, (reading, *shape)
        - with a description: each client's update, (reading, client, *shape)
        - with a defense inside local steps: each example's gradient, (reading, example, *shape)"""
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
                adam=reading.adam,
                rule=reading.rule,
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
        """Return the distance (reading,) between simulated and actual updates: small for candidates that explain the
        reading.

        - `simulated`, `observed`: an observation (report on the victims) of each reading, name → (reading, *shape).

        Usually the distance is given by the field `distance`. If the description gives a likelihood p of the defense's
        random draws, the result is -2v log p with the noise variance v. With the field `exact`, the result is minus the
        observation's log density, if the description has a density."""
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
    """Return whether all observations (repeated reports on the same victims) in the batch `reading` were made under the
    same model weights."""
    return len(reading.rounds) == 1 or all(bool((value == value[:1]).all()) for value in reading.weights.values())
