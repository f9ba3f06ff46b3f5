"""Arrival: clients send each report at a random time, and stragglers lose the reports scheduled before they are ready.

T    longest random latency of a report, after the slowest expected client is ready (LDP-FL's T_S)
ℓ    lag of a straggler: time from T_S until the straggler is ready"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bench.defenses.base import Context, State, Tensors, Transform
from bench.defenses.ranges import at_least, positive, share


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAtRandom(Transform):
    """Hide which coordinates come from the same client, by random times of sending (LDP-FL, algorithm 3): the report of
    client i for coordinate j is scheduled at t_ij, uniform in (0, T), after T_S. The server receives a coordinate's
    reports in an order independent of other coordinates.

    A straggler is ready ℓ after T_S, and drops its reports with t_ij < ℓ. Sent late, the share min(1, ℓ/T) would arrive
    after T, when only stragglers send, and the server could link them. The server averages a coordinate's received
    reports: here the average replaces the dropped reports. A coordinate without any report is not updated.

    The paper has no stragglers; here a share of the clients lags in each round, with ℓ uniform in (0, `lag`). With a
    single straggler, two reports received before ℓ have the same sender with probability 1/(K - 1), all other pairs
    with 1/K, for K clients."""

    random: ClassVar[bool] = True
    mixes_clients: ClassVar[bool] = True
    unlinks: ClassVar[bool] = True

    latency: float
    """T, in any unit of time."""
    stragglers: float
    """Probability that a client lags in a round."""
    lag: float
    """Largest ℓ, in the unit of `latency`."""

    def __post_init__(self) -> None:
        positive("latency", self.latency)
        share("share of stragglers", self.stragglers)
        at_least("lag", self.lag)

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        lags, sent = self.lags(next(iter(tensors.values())), context), {}
        for name, value in tensors.items():
            arrived = self.times(name, value, context) >= lags.reshape(-1, *[1] * (value.dim() - 1))
            number = arrived.sum(0, keepdim=True)
            mean = value.where(arrived, 0.0).sum(0, keepdim=True) / number.clamp_min(1)
            order = context.draws.uniform(f"{name}/order", value).argsort(dim=0, stable=True)
            sent[name] = torch.gather(value.where(arrived, mean), 0, order)
        return sent

    def expected(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        """Return an attacker's candidate updates `tensors` and the unchanged `state`: times keep the mean over clients
        in expectation. `context`: place in the training."""
        return dict(tensors), state

    def times(self, name: str, like: Tensor, context: Context) -> Tensor:
        """Return the scheduled times t after T_S, in the shape of `like` (client, …) for the tensor `name`, in the unit
        of `latency`. `context` gives the random draws."""
        scheduled: Tensor = self.latency * context.draws.uniform(f"{name}/time", like)
        return scheduled

    def lags(self, like: Tensor, context: Context) -> Tensor:
        """Return each client's lag ℓ in this round, (client,), in the unit of `latency`; 0 for a client without a lag.
        `like` (client, …) gives the number of clients and the dtype; `context` gives the random draws."""
        one = like.reshape(len(like), -1)[:, :1]
        lagging = context.draws.uniform("straggler", one) < self.stragglers
        lags: Tensor = (self.lag * context.draws.uniform("lag", one)).where(lagging, 0.0)[:, 0]
        return lags
