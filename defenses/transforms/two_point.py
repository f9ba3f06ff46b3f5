"""Two-point reports: a client replaces each weight by either of two values, which is ε-locally private."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bench.defenses.base import AddedNoise, Context, State, Tensors, Transform
from bench.defenses.ranges import positive
from bench.rows import rows

_LEAST = 1e-6  # twice the probability assumed for a report which an out-of-range candidate cannot send


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoPoint(Transform):
    """Randomise each weight w for local privacy: report c + rκ with probability 1/2 + (w - c)/(2rκ), otherwise c - rκ,
    with κ = (e^ε + 1)/(e^ε - 1). c and r are the centre and the half width of the range to which w is first clipped. A
    report is unbiased, with variance r²κ² - (w - c)² (LDP-FL eq. 2, lemmas 1, 2). The transformed tensors are clients'
    updates u, with weights w = w_0 - u·η (`Setting.weight_step` is η, or 1 if u are weight differences)."""

    random: ClassVar[bool] = True
    reads_weights: ClassVar[bool] = True

    epsilon: float
    """ε of a report."""
    centre: float = 0.0
    """c, used if `radius` is given."""
    radius: float | None = None
    """r; None: c and r are the middle and the half width of each tensor's weights at the start of the round."""

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon)
        if self.radius is not None:
            positive("radius", self.radius)

    @property
    def stretch(self) -> float:
        """Factor by which a random report leaves the range of weights: κ = (e^ε + 1)/(e^ε - 1), the distance between a
        report and the range's centre c, divided by the range's half width r."""
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
        """Return the transform's output for an attacker's candidate updates `tensors`, averaged over the random
        reports, and the unchanged `state`: updates that lead to the clipped weights. `context`: place in the training,
        with the round's weights."""
        start = {name: value.to(tensors[name]) for name, value in _weights(context).items()}
        return {
            name: (value - self._clipped(tensors[name], value, context)) / context.setting.weight_step
            for name, value in start.items()
        }, state

    def log_likelihood(self, tensors: Tensors, observed: Tensors, context: Context) -> Tensor:
        """Score candidates by the log likelihood of the reports `observed`, for each row (client) of the candidate
        updates `tensors`: log(1 + s·(w - c)/(rκ)) minus its maximum log(1 + 1/κ), summed over the reports. s is the
        sign of a report, w the candidate's weight, c and r the centre and half width of the range, and κ the factor
        `stretch`. A tensor with r = 0 adds no information. `context`: place in the training, with the round's weights.
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
        """Return the noise that attackers assume: for each tensor, an upper bound on the variance of a report, (rκ/s)².

        r is the half width of the weights' range. The two possible reports lie κ (`stretch`) half widths from the
        centre. s (`weight_step`) is the weight change per unit of an update. The variance is at least the share
        1 - 1/κ² of the bound. `context` is the place in the training, with the round's weights; `state` is not used."""
        scale = (self.stretch / context.setting.weight_step) ** 2
        return AddedNoise(
            variance={
                name: (scale * self._range(start)[1] ** 2).to(start.dtype) for name, start in _weights(context).items()
            },
            bound=True,
        )

    def _range(self, start: Tensor) -> tuple[Tensor, Tensor]:
        """Return the centre c and the half width r of the range of a tensor's weights, from its weights `start` at the
        start of the round. The results are float64 scalars on the tensor's device."""
        if self.radius is not None:
            known = torch.tensor((self.centre, self.radius), dtype=torch.float64, device=start.device)
            return known[0], known[1]
        low, high = start.min().double(), start.max().double()
        return (low + high) / 2, (high - low) / 2

    def _clipped(self, update: Tensor, start: Tensor, context: Context) -> Tensor:
        centre, radius = self._range(start)
        return (start - context.setting.weight_step * update).clamp(centre - radius, centre + radius)


def _nonzero(value: Tensor) -> Tensor:
    return value.where(value != 0, 1.0)


def _weights(context: Context) -> Tensors:
    if context.weights is None:
        raise ValueError("reports are of weights: the weights at the start of the round are not known here")
    return context.weights
