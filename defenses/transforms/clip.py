"""Clip: shorten a gradient to a bound, its direction kept: g·min(1, C/‖g‖)."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bench.defenses.base import Context, Tensors, Transform
from bench.defenses.schedules import Schedule, value_at
from bench.defenses.transforms.rows import rows, spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip(Transform):
    """Clip each row to `bound`: each tensor by its own norm (`tensor`), or all by their joint norm (`flat`).

    Per tensor, as paper A and its code have it, a row of M tensors may reach the norm √M·C; flat is
    what accountants assume (Abadi et al. 2016, algorithm 1).  A row within the bound stays bit-equal.
    """

    bound: float | Schedule
    per: Literal["tensor", "flat"] = "flat"

    def __post_init__(self) -> None:
        if not callable(self.bound):
            _checked(self.bound)

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        bound = _checked(value_at(self.bound, context.round))
        norms = {
            name: torch.linalg.vector_norm(rows(tensor, context.lead), dim=-1)
            for name, tensor in tensors.items()
        }
        if self.per == "flat":
            # The norm of the norms: unlike a root of a sum, its derivative at zero is finite.
            joint = torch.linalg.vector_norm(torch.stack(tuple(norms.values())), dim=0)
            norms = dict.fromkeys(tensors, joint)
        return {
            name: tensor * spread(_factor(norms[name], bound), tensor) for name, tensor in tensors.items()
        }

    def candidate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor]:
        """The candidate, clipped likewise."""
        del observed
        return self.apply(tensors, context)


def _factor(norm: Tensor, bound: float) -> Tensor:
    """min(1, C/‖g‖): exactly 1 within the bound (C divided by itself), no division by zero."""
    return torch.full_like(norm, bound) / norm.clamp(min=bound)


def _checked(bound: float) -> float:
    if not 0 < bound < math.inf:
        raise ValueError(f"clip bound must be positive and finite, got {bound}")
    return bound
