"""Noise shares: each client's noise is taken off again, share by share, by neighbours of its round."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bench.defenses.accounting.shares import upload_variance
from bench.defenses.base import Context, Tensors, Transform


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseShares(Transform):
    """Client i adds v shares n_ij ~ N(0, s²), v·s² = `deviation`², and, of what v neighbours sent it, -r·n_ji with
    r ~ N(1, σ_r²) of its own, for every coordinate (Wang et al., NISS, algorithm 2).

    Neighbours are the next v of a ring in the round's order, K - 1 at most.  A share `context.colluders` of them,
    the nearest, tell the reader what they sent and received: their n_ij are taken off, and the mean of -r·n_ji.
    """

    random: ClassVar[bool] = True
    across: ClassVar[bool] = True

    deviation: float
    shares: int
    factor_variance: float

    def __post_init__(self) -> None:
        if not 0 <= self.deviation < math.inf:
            raise ValueError(f"deviation must be at least 0 and finite, got {self.deviation}")
        if self.shares < 1:
            raise ValueError(f"shares must be at least 1, got {self.shares}")
        if not 0 <= self.factor_variance < math.inf:
            raise ValueError(f"factor_variance must be at least 0 and finite, got {self.factor_variance}")

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        known = round(context.colluders * self.shares)
        return {name: tensor + self._noise(name, tensor, context, known) for name, tensor in tensors.items()}

    def _noise(self, name: str, like: Tensor, context: Context, known: int) -> Tensor:
        """What is left of all shares on each upload, (client, *shape)."""
        unit, spread = self.deviation / math.sqrt(self.shares), math.sqrt(self.factor_variance)
        total = torch.zeros_like(like)
        for number in range(self.shares):
            sent = unit * context.draws.normal(f"{name}/share {number}", like)
            received = sent.roll(number + 1, 0)
            apart = spread * context.draws.normal(f"{name}/factor {number}", like) if spread else 0.0
            # r = 1 + apart; who knows n_ij and n_ji takes off n_ij - n_ji
            total = total - apart * received
            if number >= known:
                total = total + sent - received
        return total

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor]:
        """The candidate itself, the mean of what the reading would show."""
        del observed, context
        return dict(tensors)

    def noise(self, context: Context) -> tuple[Literal["gaussian", "laplace"], float]:
        """Taken as Gaussian, which it is where no neighbour colludes or σ_r is 0."""
        share = round(context.colluders * self.shares) / self.shares
        return "gaussian", self.deviation**2 * upload_variance(self.factor_variance, share)
