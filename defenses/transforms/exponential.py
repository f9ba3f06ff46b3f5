"""Exponential reports: a coordinate is replaced by a grid value, near values with exponentially larger probability."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bench.defenses.base import AddedNoise, Context, State, Tensors, Transform
from bench.defenses.ranges import at_least, positive
from bench.rows import rows

_FINE = 16  # values of the table for the mean's inverse between two values of the grid


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialReports(Transform):
    """Clip each coordinate x to ±r and report a grid value y with probability ∝ exp(-ε|x - y|/(4r)). Coordinates are
    independent. The grid has n equally spaced values from -r to r. Reports on x and x' differ by at most ε|x - x'|/(2r)
    in log probability: this is condensed local privacy with α = ε/(2r), and ε-local privacy on the whole range."""

    random: ClassVar[bool] = True

    epsilon: float
    """ε of a coordinate's report."""
    radius: float
    """r, the limit of a coordinate's magnitude."""
    levels: int
    """n, the number of grid values."""

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon)
        positive("radius", self.radius)
        at_least("levels", self.levels, 2)

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        reports = {}
        for name, tensor in tensors.items():
            x = tensor.clamp(-self.radius, self.radius)
            index = self._index(x, context.draws.uniform(name, tensor))
            reports[name] = index * self._step - self.radius
        return reports

    def expected(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        """Return the mean report of each coordinate of the candidates `tensors`, and the unchanged `state`. The mean
        lies between the coordinate and 0, because the range is limited. `context`: place in the training."""
        return {name: self._moment(value.clamp(-self.radius, self.radius), 1) for name, value in tensors.items()}, state

    def log_likelihood(self, tensors: Tensors, observed: Tensors, context: Context) -> Tensor:
        """Return the log probability of the reports `observed` for each row (client) of the candidates after
        `expected`, `tensors`. `context`: place in the training."""
        total: Tensor | None = None
        for name, mean in tensors.items():
            x = self._inverse(mean)
            apart = self._rate * (x - observed[name].detach()).abs()
            each = self._nearest(x) - apart - self._total(x).log()
            row = rows(each, context.lead).sum(-1)
            total = row if total is None else total + row
        assert total is not None
        return total

    def noise(self, context: Context, state: State) -> AddedNoise:
        """Return the noise that attackers assume: the largest variance of a report over coordinates from -r to r.
        `context` and `state` are not used."""
        return AddedNoise(variance=float(self._variance(self._table()).max()), bound=True)

    def variance_at(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        """Return the exact variance of each coordinate's report for these `tensors`, name → (*lead, *shape), with the
        leading axes *lead. `context`: place in the training."""
        return {name: self._variance(value.clamp(-self.radius, self.radius)) for name, value in tensors.items()}

    @property
    def _rate(self) -> float:
        return self.epsilon / (4 * self.radius)

    @property
    def _step(self) -> float:
        return 2 * self.radius / (self.levels - 1)

    def _grid(self) -> list[float]:
        return [at * self._step - self.radius for at in range(self.levels)]

    def _index(self, x: Tensor, draws: Tensor) -> Tensor:
        """Return the first grid index whose cumulative weight exceeds the draw, for coordinates `x` in ±r and `draws`
        in [0, 1). The weights fall geometrically on both sides of x, so that the sum has an inverse."""
        below, lower, upper = self._sides(x)
        left, right = lower * self._series(below + 1), upper * self._series(self.levels - 1 - below)
        mass = draws * (left + right)
        nearer = torch.where(mass < left, (left - mass) / lower, (mass - left) / upper)  # over the side's first weight
        far = torch.finfo(x.dtype).eps - 1  # values of less weight are never reported
        number = torch.log1p((nearer * math.expm1(-self._decay)).clamp_min(far)) / -self._decay
        # the left side counts from x down, so that the index grows with the draw
        index = torch.where(mass < left, below - number.ceil() + 1, below + 1 + number.floor())
        return torch.where(mass < left, index.clamp_min(0).minimum(below), index.clamp(max=self.levels - 1))

    def _sides(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the index of the grid value below `x`, and the weights of the values below and above `x`; the larger
        weight is 1."""
        place = (x + self.radius) / self._step
        below = place.floor().clamp(0, self.levels - 2)
        down, up = self._decay * (place - below), self._decay * (below + 1 - place)
        nearest = self._nearest(x)
        return below, (nearest - down).exp(), (nearest - up).exp()

    def _series(self, terms: Tensor) -> Tensor:
        """Return the sum of the first `terms` powers of exp(-decay)."""
        return torch.expm1(-self._decay * terms) / math.expm1(-self._decay)

    @property
    def _decay(self) -> float:
        """Difference of log weights between two grid values on the same side."""
        return self._rate * self._step

    def _nearest(self, x: Tensor) -> Tensor:
        """Return minus the log weight of the grid value nearest to `x`. Weights are relative to this value's, so that
        no sum of weights is 0."""
        place = (x + self.radius) / self._step
        return self._decay * (place - place.round().clamp(0, self.levels - 1)).abs()

    def _total(self, x: Tensor) -> Tensor:
        """Return the sum of the weights over the grid."""
        below, lower, upper = self._sides(x)
        return lower * self._series(below + 1) + upper * self._series(self.levels - 1 - below)

    def _moment(self, x: Tensor, power: int) -> Tensor:
        """Return the mean of y^`power` over the reports y on the limited coordinates `x`."""
        total, nearest = torch.zeros_like(x), self._nearest(x)
        for value in self._grid():
            total = total + value**power * (nearest - self._rate * (x - value).abs()).exp()
        return total / self._total(x)

    def _variance(self, x: Tensor) -> Tensor:
        return self._moment(x, 2) - self._moment(x, 1).square()

    def _table(self) -> Tensor:
        return torch.linspace(-self.radius, self.radius, _FINE * (self.levels - 1) + 1, dtype=torch.float64)

    def _inverse(self, mean: Tensor) -> Tensor:
        """Return the coordinates with these mean reports; the derivative is that of a table with `_FINE` values between
        two of the grid."""
        points = self._table().to(mean.device)
        means = self._moment(points, 1)
        at = torch.searchsorted(means, mean.detach().double().contiguous()).clamp(1, len(points) - 1)
        low, high = means[at - 1].to(mean), means[at].to(mean)
        slope = (points[at] - points[at - 1]).to(mean) / (high - low).clamp_min(torch.finfo(mean.dtype).tiny)
        return (points[at - 1].to(mean) + slope * (mean - low)).clamp(-self.radius, self.radius)
