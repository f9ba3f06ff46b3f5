"""Mixtures (mixup) as a function of the original examples, for attacks on training with mixtures.

Each row of the mixing matrix M (mixture, original) is a softmax over variables: positive shares with sum 1. The
variables of row n in M follow the variables of original n, so solvers and stages need no change."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.attacks.search.space import Space

_OWN = 1.5  # at u = 0: logit of a mixture's main original over the others; a share of .39 at batch size 8
_SPREAD = 3.0  # of the logits over their variables


@dataclass(frozen=True, slots=True)
class Mixed:
    """Search space for an attack on mixup: the original examples behind a batch of mixtures, together with the matrix
    that mixes them. An original's variables are its variables in `inner`, followed by the logits of its row in the
    mixing matrix, with a logit per original. Variables and inputs both have the shape (..., example, value + examples).
    """

    inner: Space
    """Search space for an original's inputs."""
    examples: int
    """Number of originals."""

    def inputs(self, u: Tensor) -> Tensor:
        """Map a solver's variables to candidates: the original examples before mixup, each followed by the logits of
        its row in the mixing matrix, (..., example, value + examples). `u` are the variables, with the same shape."""
        return self.with_energy(u)[0]

    def variables(self, x: Tensor) -> Tensor:
        """Map candidates to a solver's variables, the inverse of `inputs`: (..., example, value + examples). `x` are
        the original examples before mixup, each followed by the logits of its row in the mixing matrix, with the same
        shape."""
        logits = (self._last(x) - self._own(x)) / _SPREAD
        return self._both(self.inner.variables(x[..., : -self.examples]), logits)

    def with_energy(self, u: Tensor) -> tuple[Tensor, Tensor]:
        x, energy = self.inner.with_energy(u[..., : -self.examples])
        return self._both(x, self._own(u) + _SPREAD * self._last(u)), energy

    def _last(self, values: Tensor) -> Tensor:
        return values[..., -self.examples :]

    def _own(self, like: Tensor) -> Tensor:
        return _OWN * torch.eye(self.examples, dtype=like.dtype, device=like.device)

    def _both(self, values: Tensor, logits: Tensor) -> Tensor:
        return torch.cat([values, logits], -1)


def split(values: Tensor, examples: int) -> tuple[Tensor, Tensor]:
    """Split candidates for an attack on mixup into the original examples (..., example, value) and the mixing matrix
    (..., mixture, original), whose rows are shares with sum 1.

    - `values` (..., example, value + examples): an original's inputs, followed by the logits of its row in the mixing
      matrix.
    - `examples`: number of originals."""
    return values[..., :-examples], values[..., -examples:].softmax(-1)
