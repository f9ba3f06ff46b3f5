"""Arrival: clients send each report at a random time, and stragglers drop the reports scheduled before they are ready.

T    longest random latency of a report, after the slowest expected client is ready (LDP-FL's T_S)
ℓ    lag of a straggler: time from T_S until the straggler is ready"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from bench.defenses.base import Context, Shown, State, Tensors, Transform
from bench.defenses.ranges import at_least, positive, share
from bench.defenses.transforms.rows import broadcast


@dataclass(frozen=True, slots=True, kw_only=True)
class DropLate(Transform):
    """Lose the late reports of stragglers, under random times of sending (LDP-FL, algorithm 3): a client's report for a
    coordinate is scheduled at t, uniform in (0, T), after T_S. A straggler is ready ℓ after T_S, and drops its reports
    with t < ℓ. Sent late, the share min(1, ℓ/T) would arrive after T, when only stragglers send, and the server could
    link them. Times of sending otherwise only permute a coordinate's reports (`shuffle.py`).

    The server divides the sum of the received reports by their expected number, so that the mean over clients stays
    unbiased: a dropped report is 0, another is divided by the probability to arrive in time.

    The paper has no stragglers; here a share of the clients lags in each round, with ℓ uniform in (0, `lag`)."""

    random: ClassVar[bool] = True
    reads: ClassVar[Shown] = "zeros"

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

    @property
    def received(self) -> float:
        """Probability that a report arrives in time: 1 minus `stragglers` times the mean of min(1, ℓ/T)."""
        most = self.lag / self.latency
        return 1 - self.stragglers * (most / 2 if most <= 1 else 1 - 1 / (2 * most))

    @property
    def keeps(self) -> tuple[Shown, ...]:
        return ("zeros",)

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        lags = self.lags(next(iter(tensors.values())), context)
        return {
            name: (value / self.received).where(self.times(name, value, context) >= broadcast(lags, value), 0.0)
            for name, value in tensors.items()
        }

    def expected(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        """Return an attacker's candidate updates `tensors` and the unchanged `state`: lost reports do not change the
        mean. `context`: place in the training."""
        return dict(tensors), state

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor]:
        """Simulate the transform on an attacker's candidate updates `tensors`, with the lost reports shown by the zeros
        in the attacked reading `observed`. `context`: place in the training."""
        return {name: (value / self.received).where(observed[name] != 0, 0.0) for name, value in tensors.items()}

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
