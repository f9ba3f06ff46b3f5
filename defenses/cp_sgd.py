"""cpSGD: a client's update is rounded at random to few values, with binomial noise."""

import math
from dataclasses import dataclass

from bench.defenses.accounting import binomial
from bench.defenses.accounting.mechanism import Mechanism
from bench.defenses.accounting.report import DELTA
from bench.defenses.base import Defense, Setting, StageTransforms
from bench.defenses.strength import Strength
from bench.defenses.transforms.binomial import BinomialNoise
from bench.defenses.transforms.clip import Clip
from bench.parameters import parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class CpSgd(Defense):
    """Clip a client's update to norm D, limit each coordinate to ±r, round the coordinate at random to k values from
    -r to r, and add q·(Binomial(m, 1/2) - m/2), with the values' distance q. The sum over K clients has noise with K·m
    coin flips on each coordinate.

    ε of a round is the paper's theorem 1 for this sum, with bounds on the change of a rounded vector derived here
    (`bench.defenses.accounting.binomial`). Departures: the random rotation before the rounding is left out, and r is a
    parameter; a message is a number in place of bits."""

    reference = "Agarwal et al. 2018 (cpSGD), NeurIPS, §2 (theorem 1), §4 (π_sk with binomial noise)"
    stages = ("client",)
    strength = Strength("trials", 2, 1 << 20)

    clip: float = parameter(
        0.5, "D, bound on a client's update", unit="of the update", source="ours, as dp-sgd", above=0
    )
    radius: float = parameter(
        0.05, "r, limit of a coordinate's magnitude", unit="of the update", source="ours, as cldp", above=0
    )
    levels: int = parameter(17, "k, values from -r to r", source="Agarwal et al. 2018, figure 1 (k = 2 … 16)", low=2)
    trials: int = parameter(256, "m, coin flips in a client's noise on a coordinate", source="ours", low=1)

    def transforms(self, setting: Setting) -> StageTransforms:
        return {"client": (Clip(bound=self.clip, per="flat"), self._noise)}

    def mechanism(self, setting: Setting) -> Mechanism:
        deviation = self._noise.spacing * math.sqrt(self.trials) / 2
        return Mechanism(
            unit="client",
            sigmas=(deviation / self.clip,) * setting.rounds,
            released=math.sqrt(setting.senders),
            rows={},
            paper=False,
            stated=self.epsilon(setting),
            unproved="theorem 1 is of the sum in a single round; binomial noise is not composed over rounds here",
        )

    def epsilon(self, setting: Setting, delta: float = DELTA) -> float | None:
        """Return ε at δ = `delta` for a replaced client in the sum over a round's clients, by the paper's theorem 1.
        `setting`: the federated setting, with public weights (the number of coordinates). None without these weights,
        or with too few coin flips for the theorem."""
        if setting.public is None:
            return None
        size = sum(value.numel() for value in setting.public.weights.values())
        reach = min(2 * self.clip, 2 * self.radius)
        first, second, largest = binomial.changes(2 * self.clip, self._noise.spacing, size, reach, delta / 2)
        flips = self.trials * setting.senders
        value = binomial.epsilon(flips, size, (first, second, largest), delta / 2)
        return value if math.isfinite(value) else None

    @property
    def _noise(self) -> BinomialNoise:
        return BinomialNoise(radius=self.radius, levels=self.levels, trials=self.trials)
