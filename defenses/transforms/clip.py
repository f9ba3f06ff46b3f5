"""Clipping: scale a gradient down to a norm bound C and keep its direction, g·min(1, C/‖g‖)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bench.defenses.base import Context, Scaling, Shown, State, Tensors, Transform
from bench.defenses.ranges import positive
from bench.defenses.schedules import Schedule, value_at
from bench.defenses.transforms.rows import joint_norm, norms, rescaled


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip(Transform):
    """Clip each row (a client's or an example's tensors) to norm C. With `per` = "tensor", as in Fed-αCDP and its code,
    a row with M tensors may reach norm √M·C; accountants assume "flat" (Abadi et al. 2016, algorithm 1). A row within
    the bound stays equal bit for bit."""

    bound: float | Schedule
    """C, a number or a schedule over rounds."""
    per: Literal["tensor", "flat"] = "flat"
    """"tensor" clips each tensor by its norm, "flat" all tensors by their joint norm."""

    def __post_init__(self) -> None:
        if not callable(self.bound):
            positive("clip bound", self.bound)

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        return rescaled(tensors, self.by_norms(norms(tensors, context.lead), context), context)

    def by_norms(self, norms: Tensors, context: Context) -> Scaling:
        bound = positive("clip bound", value_at(self.bound, context.round))
        return Scaling(clip_factors(norms, bound, self.per))

    @property
    def steady(self) -> bool:
        return True

    @property
    def keeps(self) -> tuple[Shown, ...]:
        return ("zeros", "directions")

    def expected(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        return self.apply(tensors, context), state


def clip_factors(norms: Tensors, bound: float | Tensor, per: Literal["tensor", "flat"]) -> dict[str, Tensor]:
    """Return the factors min(1, C/‖g‖) by which a clip shortens each tensor g of each row (a client or an example):
    name → (*lead), with the leading axes *lead.

    - `norms`: norm of each tensor and row, name → (*lead).
    - `bound`: C, a number or (*lead).
    - `per`: "tensor" takes each tensor's norm, "flat" the joint norm of all tensors."""
    if per == "flat":
        return dict.fromkeys(norms, _factor(joint_norm(norms), bound))
    return {name: _factor(norm, bound) for name, norm in norms.items()}


def _factor(norm: Tensor, bound: float | Tensor) -> Tensor:
    """Return min(1, C/‖g‖): exactly 1 within the bound (C divided by itself), without division by zero."""
    if isinstance(bound, Tensor):
        return bound / torch.maximum(norm, bound)
    return torch.full_like(norm, bound) / norm.clamp(min=bound)
