"""The curvature of the matching distance at public examples, as a search space: all directions equally steep."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bench.attacks.parts.space import Gaussian
from bench.gradients import group_gradients, one_hot
from bench.rng import Key
from bench.trip import Reading

LARGEST = 4096  # values up to which the matrix is made: its factor has value² numbers
_PROBES = 2048
_EXAMPLES = 32  # public examples at a time
_DAMPING = 1e-3  # of the mean curvature


@dataclass(frozen=True, slots=True)
class Curved:
    """Variables w of a space's u = T w, with T Tᵀ the inverse of the damped curvature in u.

    `matrix` (value, value) is A T, x = mean + A T w, of inputs in `mean` (value,); `to_prior` is T.
    """

    space: Gaussian
    matrix: Tensor
    to_prior: Tensor

    def inputs(self, w: Tensor) -> Tensor:
        return w @ self.matrix.to(w).T + self.space.mean.flatten().to(w)

    def variables(self, x: Tensor) -> Tensor:
        u = self.space.variables(x)
        flat = u.reshape(-1, u.shape[-1]).T
        w: Tensor = torch.linalg.solve_triangular(self.to_prior.to(u), flat, upper=True)
        return w.T.reshape(u.shape)

    def energy(self, w: Tensor) -> Tensor:
        return self.space.energy(w @ self.to_prior.to(w).T)


def curved(space: Gaussian, reading: Reading, key: Key) -> Curved:
    """`space` in variables in which Σ (∇L(x, y) - g)² has about the same curvature in every direction.

    E[JᵀJ], J = ∂∇L/∂x, is the mean of (Jᵀz)(Jᵀz)ᵀ over random signs z and public examples.  One matrix serves all
    readings under these weights.
    """
    like = next(iter(reading.values.values()))
    size = reading.public_mean.numel()
    total = torch.zeros((size, size), dtype=like.dtype)
    count = 0
    for probes in _probes(reading, like, key):
        u = space.transposed(probes)
        total.addmm_(u.T, u)
        count += len(u)
    mean = total.diagonal().mean() / count
    damped = (total / (count * mean)).double()
    damped.diagonal().add_(_DAMPING)
    factor = torch.linalg.cholesky(damped)
    to_prior = torch.linalg.inv(factor).T.contiguous()
    matrix = (space.inputs(to_prior.T.to(like)) - space.mean.flatten()).T
    return Curved(space, matrix.to(like).contiguous(), to_prior.to(like).contiguous())


def _probes(reading: Reading, like: Tensor, key: Key) -> Iterator[Tensor]:
    """Jᵀz (probe, value) of public examples, in turn."""
    weights = {name: value[0] for name, value in reading.weights.items()}
    public = reading.public_inputs
    done = 0
    while done < _PROBES:
        numbers = [n % len(public) for n in range(done, min(_PROBES, done + _EXAMPLES))]
        labels = torch.tensor(numbers) % reading.classes
        targets = one_hot(labels, reading.classes, like.dtype)[:, None].to(like.device)
        inputs = public[numbers].to(like)[:, None].requires_grad_()
        gradients = group_gradients(reading.model, weights, inputs, targets, differentiable=True)
        draw = key.generator("curvature-matrix", done)
        product = torch.zeros((), dtype=like.dtype, device=like.device)
        for value in gradients.values():
            signs = torch.from_numpy(draw.integers(0, 2, value.shape, dtype=np.int8))
            product = product + (value * (2 * signs - 1).to(like)).sum()
        (derivative,) = torch.autograd.grad(product, inputs)
        yield derivative.flatten(1)
        done += len(numbers)
