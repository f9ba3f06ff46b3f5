"""What the noise that a defense describes tells an adaptive attacker."""

from dataclasses import dataclass

from torch import Tensor

from bench.attacks.parts.prior import edge_scale, edges, outside
from bench.trip import Noise, Reading

_RANGE_DEVIATION = 0.05  # standard deviation of values outside the data's range


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseModel:
    """Makes the objective that of the most probable candidate, not of the one that fits best.

    With variance v of the noise on each coordinate of the mean observation, -2v log p is the squared
    distance (Laplace's law: √(v/2) times -log p is the absolute distance) plus `weight` times the prior's
    -log p: neighbours differ as in public images (scale `edge_scale`), and values lie in the data's range.
    `variance` is in gradient units squared; at 0 nothing is known of noise, and the prior is 0.
    """

    variance: float
    weight: float
    edge_scale: float

    @classmethod
    def of(cls, reading: Reading, observations: int) -> "NoiseModel":
        """The model of a reading whose observations were averaged to so many; `weight` is 0 where there are no
        public images."""
        noise = Noise() if reading.description is None else reading.description.noise
        variance = noise.variance / (len(reading.rounds) / observations)
        images = reading.kind == "image" and len(reading.public_inputs) > 1
        weight = 0.0
        if images:
            single = noise.law == "laplace" and len(reading.rounds) == 1
            weight = (variance / 2) ** 0.5 if single else 2 * variance
        return cls(
            variance=variance, weight=weight,
            edge_scale=edge_scale(reading.public_inputs[:256]) if weight else 1.0,
        )  # fmt: skip

    def prior(self, x: Tensor, value_range: tuple[float, float]) -> Tensor | float:
        """`weight` times -log p of inputs (reading, example, *shape), up to a constant: (reading,), or 0."""
        if self.weight == 0:
            return 0.0
        return self.weight * (
            edges(x, self.edge_scale) + outside(x, *value_range) / (2 * _RANGE_DEVIATION**2)
        )
