"""The linear-Gaussian reference: the error of the best estimate if the gradient were linear around the truth.

Let z be the true example, J the derivative at z of the reading as the defense's description simulates it, N(0, v) the
noise, and N(m, C), C = A Aᵀ, a prior from public examples.  If the reading were linear in z, the best estimate (the
posterior mean) would have the mean squared error

    ‖A K⁻¹ A⁻¹(z - m)‖² + tr(A K⁻¹ (K - I) K⁻¹ Aᵀ),  K = I + Aᵀ Jᵀ J A / v,

the squared bias plus the variance from noise.  An attack's error is compared with this reference, which is no bound:
gradients are not linear, and examples are not Gaussian."""

from collections.abc import Mapping

import torch
from torch import Tensor

from bench.attacks.search.space import public_space
from bench.gradients import group_gradients, one_hot
from bench.trip import Candidates, Description, Reading

_STEP = 1e-4  # step of a central difference, for inputs in [0, 1]
_CHUNK = 128  # candidates in a single call


def mean_squared_errors(reading: Reading, truth: Tensor, labels: Tensor) -> Tensor | None:
    """Return the mean squared error of the best possible estimate of each true example, (reading,) in float64: a
    reference for the errors of attacks. The estimate is the posterior mean for a gradient that is linear around the
    true example and a Gaussian prior (formula at the top of this module).

    - `reading`: the attacker's readings (observed updates), with the defense's description.
    - `truth` (reading, *shape), in [0, 1], `labels` (reading,): the true examples behind the first readings.

    None if several examples, local steps or rounds are behind a reading, or if no noise of known variance is
    described."""
    description = reading.description
    if description is None or reading.examples > 1 or reading.steps > 1 or len(reading.rounds) > 1:
        return None
    noise = description.noise
    if noise.variance == 0 or noise.bound:
        return None
    space = public_space(reading)
    eye = torch.eye(reading.public_mean.numel(), dtype=torch.float64)
    mean = space.inputs(0 * eye[:1]).double()
    factor = (space.inputs(eye).double() - mean).T  # A, (value, variable)
    whitened = torch.linalg.solve(factor, (truth.double().flatten(1) - mean).T).T
    errors = []
    for row in range(len(truth)):
        j = _jacobian(reading, description, row, truth[row].double(), labels[row]) @ factor
        gain = torch.linalg.inv(torch.eye(len(eye), dtype=eye.dtype) + j.T @ j)
        bias = factor @ (gain @ whitened[row])
        spread = factor @ gain
        of_noise = (spread * factor).sum() - (spread * spread).sum()  # tr(A (K⁻¹ - K⁻²) Aᵀ)
        errors.append((bias.square().sum() + of_noise) / len(eye))
    return torch.stack(errors)


def _jacobian(reading: Reading, description: Description, row: int, truth: Tensor, label: Tensor) -> Tensor:
    """Return the derivative of the simulated reading number `row` with respect to its example, (coordinate, value). The
    example is `truth` (*shape) with the `label`. The derivative is divided by the noise's standard deviation."""
    observed = {name: value[row, 0].double() / reading.unit for name, value in reading.values.items()}
    weights = {name: value[0].double() for name, value in reading.weights.items()}
    deviations = _deviations(description, observed)
    size = truth.numel()
    columns = []
    for first in range(0, size, _CHUNK):
        steps = _STEP * torch.eye(size, dtype=torch.float64)[first : first + _CHUNK].unflatten(1, truth.shape)
        inputs = torch.cat([truth + steps, truth - steps])[:, None]
        targets = one_hot(label.expand(len(inputs), 1), reading.classes, torch.float64)
        gradients = group_gradients(reading.model, weights, inputs, targets, differentiable=False)
        each = {name: value[:, None] for name, value in gradients.items()}
        seen = {name: value.expand(len(inputs), *value.shape) for name, value in observed.items()}
        candidates = Candidates(inputs=inputs, targets=targets, weights=weights)
        simulated = (
            description.simulate(each, seen, candidates) if description.inside_steps else description.sent(each, seen)
        )
        flat = torch.cat([(value / deviations[name]).flatten(1) for name, value in simulated.items()], 1)
        above, below = flat.chunk(2)
        columns.append((above - below) / (2 * _STEP))
    return torch.cat(columns).T


def _deviations(description: Description, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    noise = description.noise
    variances = noise.variances or {name: torch.tensor(noise.variance) for name in like}
    least = 1e-4 * noise.variance
    return {name: variances[name].double().clamp_min(least).sqrt() for name in like}
