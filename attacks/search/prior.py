"""Priors on inputs, added to the distance as a value per reading: published priors, and a prior weighted by noise."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from bench.attacks.labels.head import head
from bench.rows import flattened, median
from bench.trip import Noise, Reading

_RANGE_DEVIATION = 0.05  # standard deviation of values outside the data's range
_MEDIAN_SQUARE = 0.4549  # of a standard normal
_SMOOTH = 0.01  # differences, in units of the data, below which |∂x| is smoothed to 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Weights of the published priors on inputs, which an attack adds to its distance."""

    total_variation: float = 0.0
    """Weight of the total variation; images only."""
    squared: float = 0.0
    """Weight of the mean square of inputs."""
    absolute: float = 0.0
    """Weight of the mean magnitude of inputs."""

    def __call__(self, x: Tensor) -> Tensor | float:
        """Return the weighted prior of inputs `x` (reading, example, *shape): (reading,), or 0 if all weights are 0."""
        return (
            (self.total_variation * total_variation(x) if self.total_variation else 0.0)
            + (self.squared * squared(x) if self.squared else 0.0)
            + (self.absolute * absolute(x) if self.absolute else 0.0)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseModel:
    """Weight for the prior on images against the distance between gradients, according to the noise in the defense's
    description: with much noise, the prior counts more. At this weight, the minimum of the objective is the most
    probable candidate.

    The objective is the squared distance plus 2v·(-log p), with the prior's density p. v is the noise variance per
    coordinate, in the mean over repeated reports. For Laplace noise, the objective is the absolute distance plus
    √(v/2)·(-log p). Under p, neighbouring pixels differ as in public images, and values lie in the data's range."""

    variance: float
    """Mean noise variance over coordinates, in squared gradient units; 0 (and no prior) if no noise is described."""
    weight: float
    """Weight of the prior's -log p in the loss, for noise with `variance`."""
    edge_scale: float
    """Scale of the differences between neighbouring pixels in public images."""
    bound: bool = False
    """True if `variance` is an upper bound; `of_rows` then estimates each reading's variance."""
    last: str | None = None
    """Name of the last layer's weight, by which `of_rows` estimates noise; None if this weight is not sent."""

    @classmethod
    def of(cls, reading: Reading, observations: int) -> "NoiseModel":
        """Derive the noise variance and the prior's weight from the defense's description in the batch `reading`. The
        weight is 0 without public images. `observations` is the number of observations (repeated reports) that the
        attack compares, after observations under equal weights are averaged."""
        noise = Noise() if reading.description is None else reading.description.noise
        variance = noise.variance / (len(reading.rounds) / observations)
        images = reading.kind.spatial and len(reading.public_inputs) > 1
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
        """Return the noise variance per coordinate of each reading (observed update), (reading,), in squared gradient
        units. `observed` are the readings' gradients, name → (reading, *shape).

        The result is the field `variance`. If `bound` is True, this field is only an upper bound; the result is then
        the smaller of two estimates, at most the bound.

        - The first estimate is the median squared coordinate, divided by the median of a squared standard normal:
          without noise, most coordinates are near 0.
        - The second estimate comes from the last layer's gradient Σ (p - y) hᵀ (probabilities p, labels y, features h):
          its mean squared column sum, divided by the number of classes. Without noise, columns sum to 0 over classes.

        Exact zeros are left out: they are dropped coordinates, without noise."""
        whole = flattened(observed, 1).detach()
        if not self.bound or self.variance == 0:
            return whole.new_full((len(whole),), self.variance)
        squares = whole.square()
        middle = median(squares.where(squares > 0, squares.new_tensor(torch.nan)))
        found = (middle / _MEDIAN_SQUARE).nan_to_num(0.0).clamp_max(self.variance)
        if self.last is None:
            return found
        last = observed[self.last].detach()
        sent = (last != 0).all(1)
        sums = last.sum(1).square().where(sent, last.new_tensor(torch.nan)) / last.shape[1]
        return torch.fmin(found, sums.nanmean(1))

    def prior(self, x: Tensor, value_range: tuple[float, float], share: Tensor | float = 1.0) -> Tensor | float:
        """Return the prior's term in the loss, the weighted -log p of inputs `x` (reading, example, *shape), up to a
        constant: (reading,), or 0 without a prior.

        - `value_range`: smallest and largest possible input value.
        - `share` (reading,): factor on the weight, for a reading whose noise variance is below the field `variance`, or
          for a distance in other units."""
        if self.weight == 0:
            return 0.0
        return self.weight * share * (edges(x, self.edge_scale) + outside(x, *value_range) / (2 * _RANGE_DEVIATION**2))


Variance = TypeVar("Variance", float, Tensor)


def _last_weight(reading: Reading) -> str | None:
    """Return the name of the last layer's weight, if the layer gives logits and the readings hold its gradient."""
    last = head(reading)
    name = None if last is None or not last.logits else last.name("weight")
    return name if name in reading.values else None


def prior_weight(variance: Variance, *, absolute: bool) -> Variance:
    """Return the weight of a prior's -log p in an objective, for noise of `variance` v per coordinate. The weight is 2v
    for a squared distance, and √(v/2) for an absolute distance (`absolute` True)."""
    return (variance / 2) ** 0.5 if absolute else 2 * variance


def total_variation(x: Tensor) -> Tensor:
    """Return the total variation of the images for each reading (observed update), (reading,): the mean absolute
    difference between neighbouring pixels, summed over both directions. `x` is (reading, example, channel, height,
    width). The form is anisotropic, with a mean over pixels (Geiping et al. 2020, §4)."""
    across, down = (d.abs().flatten(1).mean(1) for d in _differences(x))
    return across + down


def squared(x: Tensor) -> Tensor:
    """Published prior on inputs: the mean square of `x` (reading, example, *shape), for each reading (observed update):
    (reading,)."""
    return (x * x).flatten(1).mean(1)


def absolute(x: Tensor) -> Tensor:
    """Published prior on inputs: the mean magnitude of `x` (reading, example, *shape), for each reading (observed
    update): (reading,)."""
    return x.abs().flatten(1).mean(1)


def outside(x: Tensor, low: float, high: float) -> Tensor:
    """Penalty for candidates outside the data's range [`low`, `high`]: the sum of squared excesses, for each reading
    (observed update), (reading,). `x` are the candidates' inputs (reading, example, *shape)."""
    return ((low - x).clamp_min(0) ** 2 + (x - high).clamp_min(0) ** 2).flatten(1).sum(1)


def edges(x: Tensor, scale: float) -> Tensor:
    """Return -log density of images, (reading,), up to a constant, if differences between neighbouring pixels follow a
    Laplace distribution: Σ |∂x| / `scale`, smoothed at zero. `x` is (reading, example, channel, height, width); `scale`
    is the distribution's scale, as from `edge_scale`."""
    across, down = (((d * d + _SMOOTH**2).sqrt() - _SMOOTH).flatten(1).sum(1) for d in _differences(x))
    return (across + down) / scale


def edge_scale(public: Tensor) -> float:
    """Return the most likely scale of the differences between neighbouring pixels, under a Laplace distribution.
    `public` are images (example, channel, height, width). The result is their mean absolute difference, at least 0.001.
    """
    differences = torch.cat([d.flatten() for d in _differences(public)])
    return max(float(differences.abs().mean()), 1e-3)


def _differences(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[..., :, 1:] - x[..., :, :-1], x[..., 1:, :] - x[..., :-1, :]
