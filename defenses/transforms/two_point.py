"""Two-point reports: each weight is sent as one of two values, so that its report alone is ε-locally private."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bench.defenses.base import Context, Tensors, Transform


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoPoint(Transform):
    """Report each weight w in [c - r, c + r] (clipped) as c ± r·κ, κ = (e^ε + 1)/(e^ε - 1), the plus with
    probability 1/2 + (w - c)/(2rκ): unbiased, of variance r²κ² - (w - c)² (Sun et al. 2021, eq. 2, lemmas 1, 2).

    What passes is a client's update u; the weight behind it is w = w_0 - u·`moves`.  `radius` None takes c and
    r of each tensor from the weights that the round began with: the middle and half the width of their range.
    """

    random: ClassVar[bool] = True

    epsilon: float
    centre: float = 0.0
    radius: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:
            raise ValueError(f"epsilon must be above 0 and finite, got {self.epsilon}")
        if self.radius is not None and not 0 < self.radius < math.inf:
            raise ValueError(f"radius must be above 0 and finite, got {self.radius}")

    @property
    def stretch(self) -> float:
        """κ, by which a report lies outside its range."""
        return 1 / math.tanh(self.epsilon / 2)

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        found = {}
        for name, given in _weights(context).items():
            centre, radius = self._range(given)
            begun = given.to(tensors[name])
            w = self._clipped(tensors[name], begun, context)
            reach = radius * self.stretch
            plus = 0.5 + (w - centre) / (2 * reach if reach > 0 else 1)
            sign = torch.where(context.draws.uniform(name, w) < plus, 1.0, -1.0).to(w.dtype)
            found[name] = (begun - (centre + reach * sign)) / context.setting.moves
        return found

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor]:
        """The mean of its reports: the update to the weights as they are clipped."""
        del observed
        begun = {name: value.to(tensors[name]) for name, value in _weights(context).items()}
        return {
            name: (value - self._clipped(tensors[name], value, context)) / context.setting.moves
            for name, value in begun.items()
        }

    def noise(self, context: Context) -> tuple[Literal["gaussian", "laplace"], float]:
        """Taken as Gaussian, of the mean of r²κ² over all coordinates: (w - c)² is at most 1/κ² of it."""
        weights = _weights(context)
        total = sum(begun.numel() * self._range(begun)[1] ** 2 for begun in weights.values())
        mean = total / sum(begun.numel() for begun in weights.values())
        return "gaussian", mean * (self.stretch / context.setting.moves) ** 2

    def _range(self, begun: Tensor) -> tuple[float, float]:
        """c and r of one tensor."""
        if self.radius is not None:
            return self.centre, self.radius
        low, high = float(begun.min()), float(begun.max())
        return (low + high) / 2, (high - low) / 2

    def _clipped(self, update: Tensor, begun: Tensor, context: Context) -> Tensor:
        centre, radius = self._range(begun)
        return (begun - context.setting.moves * update).clamp(centre - radius, centre + radius)


def _weights(context: Context) -> Tensors:
    if context.weights is None:
        raise ValueError("reports are of weights: the weights that the round began with are not known here")
    return context.weights
