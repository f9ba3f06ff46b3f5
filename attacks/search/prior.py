"""Priors on inputs, one figure per reading, added to the distance: as published, and of an adaptive attacker."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from bench.attacks.labels.rules import last_layer
from bench.trip import Noise, Reading

_RANGE_DEVIATION = 0.05  # standard deviation of values outside the data's range
_MEDIAN_SQUARE = 0.4549  # of a standard normal
_SMOOTH = 0.01  # grey levels below which |∂x| is taken as 0: the root is smooth there


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Weights of the priors; total variation is for images alone."""

    total_variation: float = 0.0
    squared: float = 0.0
    absolute: float = 0.0

    def __call__(self, x: Tensor) -> Tensor | float:
        """Inputs (reading, example, *shape) → (reading,), or 0."""
        image = x.dim() == 5
        return (
            (self.total_variation * total_variation(x) if self.total_variation and image else 0.0)
            + (self.squared * squared(x) if self.squared else 0.0)
            + (self.absolute * absolute(x) if self.absolute else 0.0)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseModel:
    """Makes the objective that of the most probable candidate, not of the one that fits best.

    With variance v of the noise on each coordinate of the mean observation, -2v log p is the squared
    distance (Laplace's law: √(v/2) times -log p is the absolute distance) plus 2v (√(v/2)) times the prior's
    -log p: neighbours differ as in public images (scale `edge_scale`), and values lie in the data's range.
    `variance` is in gradient units squared, the mean over coordinates; at 0 nothing is known of noise, and the prior
    is 0.  Where it is a `bound`, `of_rows` estimates each reading's, with the help of `last`, the name of the last
    layer's weight.  `weight` is the prior's at `variance`.
    """

    variance: float
    weight: float
    edge_scale: float
    bound: bool = False
    last: str | None = None

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
            weight = prior_weight(variance, absolute=single)
        return cls(
            variance=variance,
            weight=weight,
            bound=noise.bound,
            last=_last_weight(reading) if noise.bound else None,
            edge_scale=edge_scale(reading.public_inputs[:256]) if weight else 1.0,
        )

    def of_rows(self, observed: Mapping[str, Tensor]) -> Tensor:
        """Each reading's variance, of name → (reading, *shape) → (reading,).

        Of a bound, the reading's own: its median square over that of a standard normal, at most the bound.  Most
        coordinates of a gradient are near zero, so that their median is the noise's, or above it where the noise is
        weak.  The last layer's tells then: Σ (p - y) over the classes is 0, so that each column of dW sums to its noise
        alone.  Coordinates that are exactly zero were dropped, not noised.
        """
        whole = torch.cat([value.detach().flatten(1) for value in observed.values()], 1)
        if not self.bound or self.variance == 0:
            return whole.new_full((len(whole),), self.variance)
        squares = whole.square()
        median = squares.where(squares > 0, squares.new_tensor(torch.nan)).nanmedian(1).values
        found = (median / _MEDIAN_SQUARE).nan_to_num(0.0).clamp_max(self.variance)
        if self.last is None:
            return found
        last = observed[self.last].detach()
        sent = (last != 0).all(1)
        sums = last.sum(1).square().where(sent, last.new_tensor(torch.nan)) / last.shape[1]
        return torch.fmin(found, sums.nanmean(1))

    def prior(self, x: Tensor, value_range: tuple[float, float], share: Tensor | float = 1.0) -> Tensor | float:
        """`weight` times -log p of inputs (reading, example, *shape), up to a constant: (reading,), or 0.

        `share` of the weight, (reading,): of a variance below `variance`, or of a distance in other units.
        """
        if self.weight == 0:
            return 0.0
        return self.weight * share * (edges(x, self.edge_scale) + outside(x, *value_range) / (2 * _RANGE_DEVIATION**2))


Variance = TypeVar("Variance", float, Tensor)


def _last_weight(reading: Reading) -> str | None:
    """The name of the last linear layer's weight, where it is sent."""
    path = last_layer(reading.model, reading.classes)
    name = None if path is None else f"{path}.weight" if path else "weight"
    return name if name in reading.values else None


def prior_weight(variance: Variance, *, absolute: bool) -> Variance:
    """What -log p counts beside a squared distance under Gaussian noise, 2v, or, `absolute`, beside an absolute one
    under Laplace noise, √(v/2)."""
    return (variance / 2) ** 0.5 if absolute else 2 * variance


def total_variation(x: Tensor) -> Tensor:
    """Mean absolute difference of neighbours, both ways: (reading, example, channel, h, w) → (reading,).

    Geiping et al. 2020, §4: anisotropic, mean over the pixels.
    """
    across, down = (d.abs().flatten(1).mean(1) for d in _differences(x))
    return across + down


def squared(x: Tensor) -> Tensor:
    """Mean square, (reading,)."""
    return (x * x).flatten(1).mean(1)


def absolute(x: Tensor) -> Tensor:
    """Mean magnitude, (reading,)."""
    return x.abs().flatten(1).mean(1)


def outside(x: Tensor, low: float, high: float) -> Tensor:
    """Summed squares of what lies outside the data's range, (reading,)."""
    return ((low - x).clamp_min(0) ** 2 + (x - high).clamp_min(0) ** 2).flatten(1).sum(1)


def edges(x: Tensor, scale: float) -> Tensor:
    """-log density, up to a constant, of images whose differences of neighbours follow Laplace's law of this
    scale: Σ |∂x| / scale, smoothed at zero; (reading, example, channel, h, w) → (reading,)."""
    across, down = (((d * d + _SMOOTH**2).sqrt() - _SMOOTH).flatten(1).sum(1) for d in _differences(x))
    return (across + down) / scale


def edge_scale(public: Tensor) -> float:
    """The scale of `edges` that public images (example, channel, h, w) make most likely: mean |∂x|, and at least
    .001."""
    differences = torch.cat([d.flatten() for d in _differences(public)])
    return max(float(differences.abs().mean()), 1e-3)


def _differences(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of neighbours across and down, (..., height, width)."""
    return x[..., :, 1:] - x[..., :, :-1], x[..., 1:, :] - x[..., :-1, :]
