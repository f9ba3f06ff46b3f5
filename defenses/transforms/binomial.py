"""Binomial noise: a coordinate is rounded to a grid at random, and the grid's index gets a centred binomial number."""

import math
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from bench.defenses.base import AddedNoise, Context, State, Tensors, Transform
from bench.defenses.ranges import at_least, positive
from bench.rows import rows

_IMPOSSIBLE = -1e6  # log probability of an index without mass: candidates stay comparable


@dataclass(frozen=True, slots=True, kw_only=True)
class BinomialNoise(Transform):
    """Limit each coordinate x to ±r, round x at random, without bias, to the next lower or higher of k equally spaced
    values from -r to r, and add q·(b - m/2). b is Binomial(m, 1/2), q = 2r/(k - 1) the distance of two values;
    coordinates are independent."""

    random: ClassVar[bool] = True

    radius: float
    """r, the limit of a coordinate's magnitude."""
    levels: int
    """k, the number of values from -r to r."""
    trials: int
    """m, the number of coin flips in a coordinate's noise."""

    def __post_init__(self) -> None:
        positive("radius", self.radius)
        at_least("levels", self.levels, 2)
        at_least("trials", self.trials, 1)

    @property
    def spacing(self) -> float:
        """Distance q of two adjacent values, in the unit of the tensors."""
        return 2 * self.radius / (self.levels - 1)

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        noisy = {}
        for name, tensor in tensors.items():
            below, chance = self._sides(tensor)
            up = (context.draws.uniform(f"{name}, rounding", tensor) < chance).to(tensor)
            coins = context.draws.uniform(f"{name}, coins", tensor)
            heads = torch.searchsorted(_cumulative(self.trials).to(tensor), coins.contiguous(), right=True)
            heads = heads.clamp_max(self.trials)
            noisy[name] = self.spacing * (below + up + heads.to(tensor) - self.trials / 2) - self.radius
        return noisy

    def expected(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        """Return the limited coordinates of the candidates `tensors`, and the unchanged `state`. `context`: place in
        the training."""
        return {name: value.clamp(-self.radius, self.radius) for name, value in tensors.items()}, state

    def noise(self, context: Context, state: State) -> AddedNoise:
        """Return the noise for attackers: the largest variance of a coordinate, q²(m + 1)/4. `context` and
        `state` are not used."""
        return AddedNoise(variance=self.spacing**2 * (self.trials + 1) / 4, bound=True)

    def variance_at(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        """Return the exact variance of each coordinate for these `tensors`, q²(p(1 - p) + m/4) with the rounding's
        chance p, name → (*lead, *shape). `context`: place in the training."""
        chances = {name: self._sides(value)[1] for name, value in tensors.items()}
        return {name: self.spacing**2 * (p * (1 - p) + self.trials / 4) for name, p in chances.items()}

    def log_density(self, tensors: Tensors, observed: Tensors, context: Context) -> Tensor:
        """Return the exact log probability of the values `observed` for each row (client) of the candidates after
        `expected`, `tensors`. `context`: place in the training."""
        total: Tensor | None = None
        for name, value in tensors.items():
            below, chance = self._sides(value)
            heads = ((observed[name].detach() + self.radius) / self.spacing + self.trials / 2).round() - below
            stays = (-chance).log1p() + self._log_mass(heads)
            each = torch.logaddexp(stays, chance.log() + self._log_mass(heads - 1)).clamp_min(_IMPOSSIBLE)
            row = rows(each, context.lead).sum(-1)
            total = row if total is None else total + row
        assert total is not None
        return total

    def _sides(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the index of the value at or below each coordinate, and the chance of the next value."""
        place = (x.clamp(-self.radius, self.radius) + self.radius) / self.spacing
        below = place.detach().floor().clamp(0, self.levels - 2)
        return below, (place - below).clamp(0, 1)

    def _log_mass(self, heads: Tensor) -> Tensor:
        """Return log P(b = `heads`), -inf outside 0 to m."""
        count = torch.as_tensor(float(self.trials), dtype=torch.float64)
        inside = heads.double().clamp(0, self.trials)
        log = torch.lgamma(count + 1) - torch.lgamma(inside + 1) - torch.lgamma(count - inside + 1)
        log = log - self.trials * math.log(2)
        return torch.where((heads >= 0) & (heads <= self.trials), log, -math.inf).to(heads)


@cache
def _cumulative(trials: int) -> Tensor:
    """Return P(b ≤ j) for j from 0 to m = `trials`, (m + 1,), float64."""
    j = torch.arange(trials + 1, dtype=torch.float64)
    count = torch.as_tensor(float(trials), dtype=torch.float64)
    log = torch.lgamma(count + 1) - torch.lgamma(j + 1) - torch.lgamma(count - j + 1) - trials * math.log(2)
    return log.exp().cumsum(0)
