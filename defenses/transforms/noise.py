"""Additive noise: independent draws on every coordinate, with a fixed or scheduled deviation."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bench.defenses.base import AddedNoise, Context, Law, Scaling, Shown, State, Tensors, Transform
from bench.defenses.ranges import at_least
from bench.defenses.schedules import Schedule, value_at


class Additive(Transform, ABC):
    """Base class for transforms that only add random noise with mean 0. For an attacker's simulation, the average over
    the noise (`expected`) is the unchanged gradient."""

    random: ClassVar[bool] = True

    @abstractmethod
    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]: ...

    def expected(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        return dict(tensors), state


class Noise(Additive):
    """Base class for additive noise with public distribution and variance."""

    law: ClassVar[Law]
    """Distribution of the noise: "gaussian" or "laplace"."""

    @abstractmethod
    def variance(self, context: Context) -> float:
        """Return the noise variance per noised coordinate, in squared units of the tensors. `context`: place in the
        training, with the round for a schedule."""

    @property
    def steady(self) -> bool:
        return True

    def noise(self, context: Context, state: State) -> AddedNoise:
        return AddedNoise(law=self.law, variance=self.variance(context))


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianNoise(Noise):
    """Add noise N(0, (scale·deviation)²) to every coordinate, or to nonzero coordinates only."""

    law: ClassVar[Law] = "gaussian"

    deviation: float | Schedule
    """Deviation before the factor `scale`: a number, or a schedule over rounds."""
    scale: float = 1.0
    """Constant factor on the deviation, useful if `deviation` is a schedule of noise multipliers."""
    on: Literal["all", "nonzero"] = "all"
    """"nonzero" leaves exact zeros unchanged, so an earlier mask stays visible."""

    def __post_init__(self) -> None:
        at_least("noise scale", self.scale)
        if not callable(self.deviation):
            at_least("noise deviation", self.deviation)

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        deviation = math.sqrt(self.variance(context))
        noised = {
            name: torch.add(tensor, context.draws.normal(name, tensor), alpha=deviation)
            for name, tensor in tensors.items()
        }
        if self.on == "all":
            return noised
        return {name: torch.where(tensor == 0, tensor, noised[name]) for name, tensor in tensors.items()}

    @property
    def keeps(self) -> tuple[Shown, ...]:
        return ("zeros",) if self.on == "nonzero" else ()

    def by_norms(self, norms: Tensors, context: Context) -> Scaling | None:
        return Scaling({}, math.sqrt(self.variance(context))) if self.on == "all" else None

    def variance(self, context: Context) -> float:
        return (self.scale * at_least("noise deviation", value_at(self.deviation, context.round))) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceNoise(Noise):
    """Add Laplace noise with scale b to every coordinate: density exp(-|x|/b)/2b, variance 2b²."""

    law: ClassVar[Law] = "laplace"

    scale: float
    """b, the scale, in units of the tensors."""
    on: Literal["all", "nonzero"] = "all"
    """"nonzero" leaves exact zeros unchanged, so an earlier mask stays visible."""

    def __post_init__(self) -> None:
        at_least("noise scale", self.scale)

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        noised = {}
        for name, tensor in tensors.items():
            up = _exponential(f"{name}/up", tensor, context)
            noised[name] = tensor + self.scale * (up - _exponential(f"{name}/down", tensor, context))
            if self.on == "nonzero":
                noised[name] = torch.where(tensor == 0, tensor, noised[name])
        return noised

    @property
    def keeps(self) -> tuple[Shown, ...]:
        return ("zeros",) if self.on == "nonzero" else ()

    def variance(self, context: Context) -> float:
        return 2 * self.scale**2


def _exponential(name: str, like: Tensor, context: Context) -> Tensor:
    """Draw exponential numbers with mean 1, shaped like `like`, by the key `name`; their differences are Laplace. The
    numbers are finite for every uniform draw. The inverse Laplace distribution function would be infinite at u = 0,
    which has probability 2⁻²⁴ in single precision. A uniform draw rounded up to 1 counts as the largest number below 1.
    """
    below_one = 1 - torch.finfo(like.dtype).eps / 2
    return -torch.log1p(-context.draws.uniform(name, like).clamp(max=below_one))
