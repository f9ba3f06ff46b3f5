"""Two-point reports: each weight is sent as one of two values, so that its report is ε-locally private."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bench.defenses.base import Context, Law, Tensors, Transform
from bench.defenses.ranges import positive


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoPoint(Transform):
    """Report each weight w in [c - r, c + r] (clipped) as c ± r·κ, κ = (e^ε + 1)/(e^ε - 1), the plus with
    probability 1/2 + (w - c)/(2rκ): unbiased, of variance r²κ² - (w - c)² (LDP-FL eq. 2, lemmas 1, 2).

    The tensors are a client's update u; its weight is w = w_0 - u·`moves`.  `radius` None takes c and r of each tensor
    from the weights at the start of the round: the middle and half the width of their range.
    """

    random: ClassVar[bool] = True

    epsilon: float
    centre: float = 0.0
    radius: float | None = None

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon)
        if self.radius is not None:
            positive("radius", self.radius)

    @property
    def stretch(self) -> float:
        """κ, the distance of a report from the centre, over r."""
        return 1 / math.tanh(self.epsilon / 2)

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        reports = {}
        for name, initial in _weights(context).items():
            centre, radius = self._range(initial)
            start = initial.to(tensors[name])
            w = self._clipped(tensors[name], start, context)
            reach = radius * self.stretch
            plus = 0.5 + (w - centre) / (2 * reach if reach > 0 else 1)
            sign = torch.where(context.draws.uniform(name, w) < plus, 1.0, -1.0).to(w.dtype)
            reports[name] = (start - (centre + reach * sign)) / context.setting.moves
        return reports

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor]:
        """The mean of its reports: the update to the weights as they are clipped."""
        del observed
        start = {name: value.to(tensors[name]) for name, value in _weights(context).items()}
        return {
            name: (value - self._clipped(tensors[name], value, context)) / context.setting.moves
            for name, value in start.items()
        }

    def noise(self, context: Context) -> tuple[Law, float]:
        """Taken as Gaussian, of the mean of r²κ² over all coordinates: (w - c)² is at most 1/κ² of it."""
        weights = _weights(context)
        total = sum(start.numel() * self._range(start)[1] ** 2 for start in weights.values())
        mean = total / sum(start.numel() for start in weights.values())
        return "gaussian", mean * (self.stretch / context.setting.moves) ** 2

    def _range(self, start: Tensor) -> tuple[float, float]:
        """c and r of one tensor."""
        if self.radius is not None:
            return self.centre, self.radius
        low, high = float(start.min()), float(start.max())
        return (low + high) / 2, (high - low) / 2

    def _clipped(self, update: Tensor, start: Tensor, context: Context) -> Tensor:
        centre, radius = self._range(start)
        return (start - context.setting.moves * update).clamp(centre - radius, centre + radius)


def _weights(context: Context) -> Tensors:
    if context.weights is None:
        raise ValueError("reports are of weights: the weights at the start of the round are not known here")
    return context.weights
