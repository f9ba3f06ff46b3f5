"""Search space in which the matching distance has about equal curvature in all directions."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.attacks.search.preconditioner import signed_derivative
from bench.attacks.search.space import Gaussian
from bench.attacks.search.tiles import block_covariance, in_variables, tiles_of
from bench.rng import Key
from bench.trip import Reading

LARGEST = 4096  # values, at most: the matrix has value² numbers
_PROBES = 2048
_FEW_PROBES, _SHARE = 256, 0.5  # for small images, and the share of the block-diagonal matrix in theirs
_SMALL = 1024  # values, at most, of an image whose matrix takes fewer probes
_EXAMPLES = 32  # public examples at a time
_BLOCKS = 6  # row blocks in a product with a triangular matrix
_DAMPING = 1e-3  # of the mean curvature


@dataclass(frozen=True, slots=True)
class EqualCurvature:
    """Search space in which the matching distance has about equal curvature in all directions, so that a solver
    converges in fewer steps. The variables w of this space give the variables u = T w of the Gaussian `space`. T Tᵀ is
    the inverse of the matching distance's curvature in u, after damping."""

    space: Gaussian
    """The Gaussian space of the variables u."""
    to_prior: Tensor
    """Matrix T, upper triangular (value, value)."""

    def inputs(self, w: Tensor) -> Tensor:
        """Map a solver's variables `w` (..., value) to the inputs of candidate examples (..., value)."""
        return self.space.inputs(self._prior(w))

    def variables(self, x: Tensor) -> Tensor:
        """Map inputs of candidate examples `x` (..., value) to a solver's variables w (..., value), the inverse of
        `inputs`."""
        u = self.space.variables(x)
        flat = u.reshape(-1, u.shape[-1]).T
        w: Tensor = torch.linalg.solve_triangular(self.to_prior.to(u), flat, upper=True)
        return w.T.reshape(u.shape)

    def with_energy(self, w: Tensor) -> tuple[Tensor, Tensor]:
        return self.space.with_energy(self._prior(w))

    def _prior(self, w: Tensor) -> Tensor:
        matrix, size = self.to_prior.to(w), len(self.to_prior)
        starts = range(0, size, -(-size // _BLOCKS))
        ends = [*starts[1:], size]
        # by blocks of rows, each without the zeros before its diagonal
        return torch.cat([w[..., a:] @ matrix[a:b, a:].T for a, b in zip(starts, ends, strict=True)], -1)


def equal_curvature(space: Gaussian, reading: Reading, key: Key) -> EqualCurvature:
    """Return a Gaussian search space in new variables, in which the matching distance has about equal curvature in
    every direction.

    - `space`: the Gaussian space in its own variables.
    - `reading`: the attacked readings, with model, weights and public examples.
    - `key`: draws random signs.

    The matching distance is Σ (∇L(x, y) - g)² to a reading g, with the loss L. Its curvature is E[JᵀJ] with J = ∂∇L/∂x,
    estimated as the mean of (Jᵀz)(Jᵀz)ᵀ over random signs z and public examples. A single matrix serves all readings at
    the same weights.

    The mean is over 2048 products Jᵀz. For images with at most 1024 values, 256 products suffice: their mean is
    averaged with its block-diagonal part over tiles (`tiles.py`)."""
    like = next(iter(reading.values.values()))
    size = reading.public_mean.numel()
    tiles = tiles_of(reading.shape) if reading.kind.spatial and size <= _SMALL else None
    total, blocks = like.new_zeros((size, size)), like.new_zeros((), dtype=torch.float64)
    count = _PROBES if tiles is None else _FEW_PROBES
    for probes in _probes(reading, like, key, count):
        u = space.transposed(probes)
        total.addmm_(u.T, u)
        if tiles is not None:
            blocks = blocks + block_covariance(tiles, probes) * (len(probes) / count)
    if tiles is not None:
        total = (1 - _SHARE) * total + _SHARE * count * in_variables(space, blocks, tiles, like)
    mean = total.diagonal().mean() / count
    damped = (total / (count * mean)).double()
    damped.diagonal().add_(_DAMPING)
    factor = torch.linalg.cholesky(damped).to(like)
    to_prior = torch.linalg.solve_triangular(factor, torch.eye(len(factor)).to(factor), upper=False).T
    return EqualCurvature(space, to_prior.contiguous())


def _probes(reading: Reading, like: Tensor, key: Key, count: int) -> Iterator[Tensor]:
    for first in range(0, count, _EXAMPLES):
        random = key.generator("curvature-matrix", first)
        examples = [n % len(reading.public_inputs) for n in range(first, min(count, first + _EXAMPLES))]
        yield signed_derivative(reading, like, examples, partial(_bits, random))


def _bits(random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.int8]:
    return random.integers(0, 2, shape, dtype=np.int8)
