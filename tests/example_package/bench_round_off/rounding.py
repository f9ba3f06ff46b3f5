"""Rounding to a grid, as a transform: stage `client` rounds the finished update."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.defenses.base import Context, Tensors, Transform


@dataclass(frozen=True, slots=True, kw_only=True)
class Round(Transform):
    """x → the nearest of 2^bits - 1 evenly spaced values between -max|x| and max|x|, per variable."""

    bits: int

    def __post_init__(self) -> None:
        if self.bits < 2:
            raise ValueError(f"bits must be at least 2, got {self.bits}")

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        return {name: self._rounded(tensor, context.lead) for name, tensor in tensors.items()}

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor]:
        """Rounding is public: a candidate is rounded as well, with the gradient of the identity.

        Rounding has gradient zero almost everywhere; an attacker would use the straight-through estimator (Bengio,
        Léonard and Courville 2013, §4).
        """
        del observed
        return {
            name: tensor + (self._rounded(tensor, context.lead) - tensor).detach()
            for name, tensor in tensors.items()
        }

    def _rounded(self, tensor: Tensor, lead: int) -> Tensor:
        axes = tuple(range(lead, tensor.dim()))
        top = tensor.abs().amax(dim=axes, keepdim=True) if axes else tensor.abs()
        spacing = top / (2 ** (self.bits - 1) - 1)
        spacing = torch.where(spacing > 0, spacing, torch.ones_like(spacing))
        return torch.round(tensor / spacing) * spacing
