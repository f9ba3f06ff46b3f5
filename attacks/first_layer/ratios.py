"""Ratios between weight and bias gradients at a first fully connected layer, as candidates for examples."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.attacks.first_layer.layer import table
from bench.attacks.first_layer.rows import Rows
from bench.attacks.objective.mismatch import mean_observation, observations
from bench.trip import Reading, Status

_ROUNDING = 1e-6  # of the largest bias gradient: smaller values are rounding
_REST = 1e-3  # of a row's explained bias gradient: a smaller rest is rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """The observed gradient at a model's first two fully connected layers, from which an attack computes examples. The
    gradients of examples already recovered can be subtracted. A row is a first-layer neuron, a unit a second-layer
    neuron; tensors are in float64."""

    of_first: Tensor
    """First layer's gradient [dW | db], (row, input + 1)."""
    of_second: Tensor
    """Second layer's weight gradient (unit, row)."""
    explained: Tensor
    """Absolute bias gradient already subtracted from each row, because it belongs to recovered examples: (row,)."""

    @property
    def status(self) -> Status:
        """Status of a reconstruction from this gradient: "nan" if the gradient has values that are not finite,
        otherwise "ok"."""
        return "ok" if all(bool(each.isfinite().all()) for each in (self.of_first, self.of_second)) else "nan"

    @property
    def rounding(self) -> Tensor:
        """Limit on the absolute bias gradient of each row (neuron of the first layer), (row,); values up to this limit
        may be rounding errors."""
        return _REST * self.explained + _ROUNDING * self.of_first[:, -1].abs().max()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """Candidate examples from a reading (observed update). A row (neuron) of the first layer with a single open example
    has the ratio dW / db equal to this example; ratios of other rows are mixtures."""

    values: Tensor
    """Candidate examples, a row's (neuron's) weight gradient over its bias gradient: (ratio, input)."""
    size: Tensor
    """Absolute bias gradient of each ratio, (ratio,)."""
    status: Status
    """Status of the reconstruction from the round's gradient."""

    @staticmethod
    def united(rounds: Sequence["Ratios"]) -> "Ratios":
        """Join the candidates of several `rounds` into one object. The status is the first that is not "ok", otherwise
        "ok"."""
        return Ratios(
            values=torch.cat([each.values for each in rounds]),
            size=torch.cat([each.size for each in rounds]),
            status=next((each.status for each in rounds if each.status != "ok"), "ok"),
        )


def mean_gradient(reading: Reading, rows: Rows) -> Iterator[Gradient]:
    """Yield the observed gradient at the first two layers `rows`, for each reading in the batch `reading` in order.
    Observations (repeated reports on the same victims) are averaged."""
    mean = mean_observation(observations(reading))
    for row in range(len(reading)):
        first, second = table(rows.first, [mean], row), mean[f"{rows.second}weight"][row].double().cpu()
        yield Gradient(of_first=first, of_second=second, explained=torch.zeros_like(first[:, -1]))


def in_range(ratios: Tensor, value_range: tuple[float, float], slack: float) -> Tensor:
    """Return which candidate examples are possible values of the data, as a mask (row,): a candidate may leave the
    data's range by a small distance only.

    - `ratios` (row, input): candidates, a row's (neuron's) weight gradient over bias gradient.
    - `value_range`: smallest and largest data value.
    - `slack`: largest root mean square distance outside the range, as a multiple of the range's width."""
    low, high = value_range
    outside = (ratios - ratios.clamp(low, high)).square().mean(1).sqrt()
    return outside <= slack * (high - low)  # NaN and infinity are outside


def by_agreement(ratios: Tensor, size: Tensor, near: float) -> tuple[Tensor, Tensor]:
    """Group candidate examples that are nearly equal: several rows (neurons) with the same ratio probably show a true
    example. Return each group's mean (group, input) and number of candidates (group,); groups around the candidates
    with most neighbours come first.

    - `ratios` (ratio, input): the candidates.
    - `size` (ratio,): absolute bias gradients; their squares are the weights in the mean.
    - `near`: largest root mean square distance within a group."""
    gaps = torch.cdist(ratios, ratios) / ratios.shape[1] ** 0.5
    close = gaps <= near
    remaining = torch.ones(len(ratios), dtype=torch.bool)
    groups, counts = [ratios[:0]], []
    for row in close.sum(1).argsort(descending=True, stable=True):
        if remaining[row]:
            own = close[row] & remaining
            weight = size[own] ** 2
            groups.append((weight @ ratios[own])[None] / weight.sum())
            counts.append(int(own.sum()))
            remaining &= ~own
    return torch.cat(groups), torch.tensor(counts, dtype=torch.long)


def honest_size(rows: Rows) -> Tensor:
    """Return the usual size of the second layer's weights in `rows`, before a server changes them: their root mean
    square, a scalar tensor. Attacks state the size of chosen weights as a multiple of this value."""
    return rows.above.square().mean().sqrt()
