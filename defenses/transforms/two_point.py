"""Two-point reports: each weight is sent as either of two values; the report is ε-locally private."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bench.defenses.base import AddedNoise, Context, State, Tensors, Transform
from bench.defenses.ranges import positive
from bench.defenses.transforms.rows import rows

_LEAST = 1e-6  # twice the chance of a report that a candidate out of range could not send


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoPoint(Transform):
    """Report each weight w (clipped to [c - r, c + r]) as c ± r·κ, κ = (e^ε + 1)/(e^ε - 1), plus with probability 1/2 +
    (w - c)/(2rκ).

    Unbiased, variance r²κ² - (w - c)² (LDP-FL eq. 2, lemmas 1, 2).  The tensors are a client's update u; its weight is
    w = w_0 - u·`weight_step`.
    """

    random: ClassVar[bool] = True

    epsilon: float
    centre: float = 0.0
    """c, for a fixed range."""
    radius: float | None = None
    """r; None: c and r per tensor, as middle and half width of the weight range at the start of the round."""

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon)
        if self.radius is not None:
            positive("radius", self.radius)

    @property
    def stretch(self) -> float:
        """κ: distance of a report from the centre, over r."""
        return 1 / math.tanh(self.epsilon / 2)

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        reports = {}
        for name, initial in _weights(context).items():
            centre, radius = self._range(initial)
            start = initial.to(tensors[name])
            w = self._clipped(tensors[name], start, context)
            reach = radius * self.stretch
            plus = 0.5 + (w - centre) / _nonzero(2 * reach)
            sign = torch.where(context.draws.uniform(name, w) < plus, 1.0, -1.0).to(w.dtype)
            reports[name] = (start - (centre + reach * sign)) / context.setting.weight_step
        return reports

    def expected(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        """Mean report: the update to the clipped weights."""
        start = {name: value.to(tensors[name]) for name, value in _weights(context).items()}
        return {
            name: (value - self._clipped(tensors[name], value, context)) / context.setting.weight_step
            for name, value in start.items()
        }, state

    def log_likelihood(self, tensors: Tensors, observed: Tensors, context: Context) -> Tensor:
        """log(1 + s·(w - c)/(rκ)) minus its maximum log(1 + 1/κ), summed over the reports' signs s.

        A tensor with radius 0 adds no information.
        """
        total: Tensor | None = None
        for name, value in _weights(context).items():
            start = value.to(tensors[name])
            centre, radius = self._range(value)
            reach, weight_step = _nonzero(radius * self.stretch), context.setting.weight_step
            sign = (start - weight_step * observed[name].detach() - centre).sign()
            chance = 1 + sign * (start - weight_step * tensors[name] - centre) / reach
            each = (chance.clamp_min(_LEAST).log() - math.log1p(1 / self.stretch)).clamp_max(0)
            row = (rows(each, context.lead).sum(-1)).where(radius > 0, 0.0)
            total = row if total is None else total + row
        if total is None:
            first = next(iter(tensors.values()))
            return first.new_zeros(first.shape[: context.lead])
        return total

    def noise(self, context: Context, state: State) -> AddedNoise:
        """At most r²κ² per tensor; (w - c)² is at most a share 1/κ²."""
        del state
        scale = (self.stretch / context.setting.weight_step) ** 2
        return AddedNoise(
            variance={
                name: (scale * self._range(start)[1] ** 2).to(start.dtype) for name, start in _weights(context).items()
            },
            bound=True,
        )

    def _range(self, start: Tensor) -> tuple[Tensor, Tensor]:
        """c and r for a tensor, in float64 on its device."""
        if self.radius is not None:
            known = torch.tensor((self.centre, self.radius), dtype=torch.float64, device=start.device)
            return known[0], known[1]
        low, high = start.min().double(), start.max().double()
        return (low + high) / 2, (high - low) / 2

    def _clipped(self, update: Tensor, start: Tensor, context: Context) -> Tensor:
        centre, radius = self._range(start)
        return (start - context.setting.weight_step * update).clamp(centre - radius, centre + radius)


def _nonzero(value: Tensor) -> Tensor:
    """The value, or 1 for 0."""
    return value.where(value != 0, 1.0)


def _weights(context: Context) -> Tensors:
    if context.weights is None:
        raise ValueError("reports are of weights: the weights at the start of the round are not known here")
    return context.weights
