"""Mixtures of a batch's examples: what a defense that mixes them trains on, as a function of the originals.

A row of the mixing matrix M (mixture, original) is the softmax of that many variables, so that its shares are positive
and sum to 1.  They stand behind the variables of one example each, so that solvers and stages carry them along.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.attacks.search.space import Space

_OWN = 1.5  # at u = 0: the logit of a mixture's own original over the others', a share of .39 in a batch of eight
_SPREAD = 3.0  # of the logits over their variables


@dataclass(frozen=True, slots=True)
class Mixed:
    """The space `inner` of each example with `examples` logits behind its variables: (..., example, value + examples)
    on both sides."""

    inner: Space
    examples: int

    def inputs(self, u: Tensor) -> Tensor:
        return self.with_energy(u)[0]

    def variables(self, x: Tensor) -> Tensor:
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
    """(..., example, value + examples), a `Mixed` space's inputs → inputs (..., example, value), M (..., mixture,
    original)."""
    return values[..., :-examples], values[..., -examples:].softmax(-1)
