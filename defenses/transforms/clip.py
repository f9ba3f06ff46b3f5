"""Clip: shorten a gradient to a bound, its direction kept: g·min(1, C/‖g‖)."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bench.defenses.base import Context, Scaled, Tensors, Transform
from bench.defenses.schedules import Schedule, value_at
from bench.defenses.transforms.rows import joint, norms, scaled


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip(Transform):
    """Clip each row to `bound`: each tensor by its own norm (`tensor`), or all by their joint norm (`flat`).

    Per tensor, as Fed-αCDP and its code have it, a row of M tensors may reach the norm √M·C; flat is
    what accountants assume (Abadi et al. 2016, algorithm 1).  A row within the bound stays bit-equal.
    """

    bound: float | Schedule
    per: Literal["tensor", "flat"] = "flat"

    def __post_init__(self) -> None:
        if not callable(self.bound):
            _checked(self.bound)

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        return scaled(tensors, self.by_norms(norms(tensors, context.lead), context), context)

    def by_norms(self, norms: Tensors, context: Context) -> Scaled:
        return Scaled(clip_factors(norms, _checked(value_at(self.bound, context.round)), self.per))

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor]:
        """The candidate, clipped likewise."""
        del observed
        return self.apply(tensors, context)


def clip_factors(norms: Tensors, bound: float | Tensor, per: Literal["tensor", "flat"]) -> dict[str, Tensor]:
    """min(1, C/‖g‖) of each tensor of each row, name → (row axes); `bound` a number, or one that fits them."""
    if per == "flat":
        return dict.fromkeys(norms, _factor(joint(norms), bound))
    return {name: _factor(norm, bound) for name, norm in norms.items()}


def _factor(norm: Tensor, bound: float | Tensor) -> Tensor:
    """Exactly 1 within the bound (C divided by itself), no division by zero."""
    if isinstance(bound, Tensor):
        return bound / torch.maximum(norm, bound)
    return torch.full_like(norm, bound) / norm.clamp(min=bound)


def _checked(bound: float) -> float:
    if not 0 < bound < math.inf:
        raise ValueError(f"clip bound must be positive and finite, got {bound}")
    return bound
