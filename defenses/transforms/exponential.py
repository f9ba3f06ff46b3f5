"""Exponential reports: a coordinate is replaced by a grid value, near values with exponentially larger probability."""

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
            left = context.draws.uniform(name, tensor) * self._total(x)
            index = torch.zeros_like(x)
            for value in self._grid():  # the first value whose cumulative weight exceeds the draw
                left = left - self._weight(x, value)
                index = index + (left >= 0).to(x)
            reports[name] = index.clamp(max=self.levels - 1) * self._step - self.radius
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
            each = -self._rate * (x - observed[name].detach()).abs() - self._total(x).log()
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

    def _weight(self, x: Tensor, value: float) -> Tensor:
        return (-self._rate * (x - value).abs()).exp()

    def _total(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for value in self._grid():
            total = total + self._weight(x, value)
        return total

    def _moment(self, x: Tensor, power: int) -> Tensor:
        """Return the mean of y^`power` over the reports y on the limited coordinates `x`."""
        total = torch.zeros_like(x)
        for value in self._grid():
            total = total + value**power * self._weight(x, value)
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
