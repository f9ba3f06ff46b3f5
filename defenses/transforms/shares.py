"""Noise shares: clients exchange shares of their noise, and the shares cancel in the mean over a round."""

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
    """Add noise that cancels between clients: each client adds v noise shares to its update, and subtracts shares
    received from neighbours (NISS algorithm 2). Client i adds n_ij ~ N(0, s²) for each neighbour j, with v·s² =
    `deviation`². Client i also adds -r·n_ji for each received share n_ji, with a factor r ~ N(1, σ_r²) per coordinate.
    A client's neighbours are the next v of the round's K clients, in a ring in round order, at most K - 1; with `group`
    the ring of each owner's devices.

    The nearest neighbours, a share `context.colluders` of all, reveal their sent and received shares to the attacker,
    who subtracts the revealed n_ij and the mean of -r·n_ji. Devices of a group reveal nothing."""

    mixes_clients: ClassVar[bool] = True

    deviation: float
    """Deviation of a client's own noise."""
    shares: int
    """v, the number of shares and neighbours."""
    factor_variance: float
    """σ_r², the variance of the factor on a received share."""
    group: int = 0
    """Number of consecutive clients, the devices of an owner, who exchange shares only with each other; 0: a single
    ring of all clients."""

    def __post_init__(self) -> None:
        at_least("deviation", self.deviation)
        at_least("shares", self.shares, 1)
        at_least("factor_variance", self.factor_variance)
        if self.group and self.shares >= self.group:
            raise ValueError(f"{self.shares} neighbours among {self.group} devices: at most {self.group - 1}")

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        known = self._known(context)
        return {name: tensor + self._noise(name, tensor, context, known) for name, tensor in tensors.items()}

    def _noise(self, name: str, like: Tensor, context: Context, known: int) -> Tensor:
        """Return the noise on each upload that the attacker cannot subtract, (client, *shape). `known` is the number of
        neighbours that reveal their shares to the attacker."""
        unit, deviation = self.deviation / math.sqrt(self.shares), math.sqrt(self.factor_variance)
        total = torch.zeros_like(like)
        for number in range(self.shares):
            sent = unit * context.draws.normal(f"{name}/share {number}", like)
            received = self._from_neighbours(sent, number + 1)
            excess = deviation * context.draws.normal(f"{name}/factor {number}", like) if deviation else 0.0
            # r = 1 + excess; an attacker with n_ij and n_ji subtracts n_ij - n_ji
            total = total - excess * received
            if number >= known:
                total = total + sent - received
        return total

    def _from_neighbours(self, sent: Tensor, offset: int) -> Tensor:
        if not self.group:
            return sent.roll(offset, 0)
        if len(sent) % self.group:
            raise ValueError(f"{len(sent)} clients are no whole number of groups of {self.group} devices")
        received: Tensor = sent.unflatten(0, (-1, self.group)).roll(offset, 1).flatten(0, 1)
        return received

    def _known(self, context: Context) -> int:
        return 0 if self.group else round(context.colluders * self.shares)

    def noise(self, context: Context, state: State) -> AddedNoise:
        """Return the noise that attackers assume: its variance on a client's upload, and on the mean over clients.
        Client j adds the noise share n_ji, and client i adds -r·n_ji with a random factor r, so only (1 - r)·n_ji
        remains in the mean. The noise is stated as Gaussian: approximate for random r, exact if r is always 1
        (`factor_variance` 0). `context` is the place in the training, with the share of neighbours that reveal their
        noise to the attacker; `state` is not used."""
        share = self._known(context) / self.shares
        own = self.deviation**2
        return AddedNoise(
            variance=own * upload_variance(self.factor_variance, share),
            of_mean=own * aggregate_variance(self.factor_variance) / context.setting.per_round,
        )
