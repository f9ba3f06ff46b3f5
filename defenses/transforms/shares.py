"""Noise shares: neighbours of a round remove each client's noise again, share by share."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bench.defenses.accounting.shares import aggregate_variance, upload_variance
from bench.defenses.base import AddedNoise, Context, State, Tensors
from bench.defenses.ranges import at_least
from bench.defenses.transforms.noise import Additive


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseShares(Additive):
    """Client i adds v shares n_ij ~ N(0, s²), v·s² = `deviation`², and, for each share n_ji that it received, -r·n_ji
    with a factor r ~ N(1, σ_r²), for every coordinate (NISS algorithm 2).

    Neighbours are the next v of a ring in the round's order, K - 1 at most.  A share `context.colluders` of them,
    the nearest, tell the attacker what they sent and received: he subtracts their n_ij, and the mean of -r·n_ji.
    """

    mixes_clients: ClassVar[bool] = True

    deviation: float
    shares: int
    factor_variance: float

    def __post_init__(self) -> None:
        at_least("deviation", self.deviation)
        at_least("shares", self.shares, 1)
        at_least("factor_variance", self.factor_variance)

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        known = round(context.colluders * self.shares)
        return {name: tensor + self._noise(name, tensor, context, known) for name, tensor in tensors.items()}

    def _noise(self, name: str, like: Tensor, context: Context, known: int) -> Tensor:
        """The sum of all shares that remain on each upload, (client, *shape)."""
        unit, deviation = self.deviation / math.sqrt(self.shares), math.sqrt(self.factor_variance)
        total = torch.zeros_like(like)
        for number in range(self.shares):
            sent = unit * context.draws.normal(f"{name}/share {number}", like)
            received = sent.roll(number + 1, 0)
            excess = deviation * context.draws.normal(f"{name}/factor {number}", like) if deviation else 0.0
            # r = 1 + excess; an attacker with n_ij and n_ji subtracts n_ij - n_ji
            total = total - excess * received
            if number >= known:
                total = total + sent - received
        return total

    def noise(self, context: Context, state: State) -> AddedNoise:
        """Taken as Gaussian, which it is where no neighbour colludes or σ_r is 0; the mean has that of the factors."""
        del state
        share = round(context.colluders * self.shares) / self.shares
        own = self.deviation**2
        return AddedNoise(
            variance=own * upload_variance(self.factor_variance, share),
            of_mean=own * aggregate_variance(self.factor_variance) / context.setting.per_round,
        )
