"""Bins in a round: the examples between neighbouring rows' (first-layer neurons') quantiles."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.attacks.first_layer.ratios import Ratios, in_range, mean_gradient
from bench.attacks.first_layer.rows import Rows, rows_of
from bench.trip import Reading

_EDGE = 1e-4  # of a ratio's largest output: a smaller output may open the row or not


@dataclass(frozen=True, slots=True, kw_only=True)
class Binned:
    """The bins of the attack `bins` in a round, for each reading (observed update) in a batch. The server has chosen
    the first layer such that row (neuron) i opens for examples above quantile i of a common direction. A bin holds the
    examples between two neighbouring quantiles; a single example in a bin can be computed from the gradient."""

    rows: Rows
    """First two layers, with the round's weights."""
    input_range: tuple[float, float]
    """Smallest and largest value of the first layer's inputs."""
    order: Tensor
    """The rows' order from the lowest quantile to the highest, (row,)."""
    singles: tuple[Ratios, ...]
    """Possible single examples, the largest first, for each reading."""
    occupied: Tensor
    """Bins which may hold an example, (reading, bin)."""

    @classmethod
    def of(cls, reading: Reading, slack: float) -> "Binned":
        """Compute the bins' gradients and the possible single examples from the readings of a round. A bin's gradient
        is the difference between the gradients at two neighbouring rows (neurons) of the first layer: the examples in
        the bin open the first row, but not the next.

        - `reading`: the round's readings (observed updates).
        - `slack`: distance outside the data's range allowed for an example, in widths of the range."""
        rows = rows_of(reading, behind=True)
        assert rows is not None
        input_range = rows.input_range(reading)
        order, singles, occupied = rising(reading, rows), [], []
        same = torch.cat([alike(rows.above[:, order]), torch.ones(1, dtype=torch.bool)])
        for gradient in mean_gradient(reading, rows):
            each = gradient.of_first[order]
            each = torch.cat([each[:-1] - each[1:], each[-1:]])
            ratios = _within_bin(rows.first.undo(each[:, :-1] / each[:, -1:]), rows.weight[order], -rows.bias[order])
            all_sizes, rounding = each[:, -1].abs(), gradient.rounding[order]
            size = all_sizes * in_range(ratios, input_range, slack) * same
            best = size.argsort(descending=True)[: reading.examples]
            best = best[size[best] > rounding[best]]
            singles.append(Ratios(values=ratios[best], size=size[best], status=gradient.status))
            occupied.append((all_sizes > rounding) | ~same)
        return cls(
            rows=rows, input_range=input_range, order=order, singles=tuple(singles), occupied=torch.stack(occupied)
        )

    def refutes(self, ratios: Tensor, row: int) -> Tensor:
        """Test candidates from another round against this round: a candidate is false if its bin in this round is
        empty. Return a mask (ratio,), True for a false candidate.

        - `ratios` (ratio, input): the candidates, as first-layer inputs.
        - `row`: position in the batch for the reading behind the candidates."""
        outputs = self.rows.outputs(ratios)[:, self.order]
        edge = _EDGE * outputs.abs().amax(1, keepdim=True)
        low, high = ((outputs > limit).sum(1) - 1 for limit in (edge, -edge))
        below = torch.cat([torch.zeros(1, dtype=torch.long), self.occupied[row].long().cumsum(0)])
        return (low >= 0) & (below[high + 1] == below[low.clamp_min(0)])  # below all quantiles there is no bin


def rising(reading: Reading, rows: Rows) -> Tensor:
    """Return the order of the first layer's `rows` (neurons) by quantile, lowest first, as indices (row,): the attack
    `bins` subtracts the gradients of neighbours in this order. A row with a lower quantile has a larger output for the
    mean public image in `reading`."""
    return rows.outputs(rows.inputs(reading.public_mean[None]))[0].argsort(descending=True)


def alike(above: Tensor) -> Tensor:
    """Return a mask (row - 1,): True if two neighbouring rows have equal columns in the second layer's weight `above`
    (unit, row). An example then has the same δ (∂loss/∂z at the first layer's output z) at both rows, so that the
    difference between the rows' gradients belongs to a bin."""
    return (above[:, :-1] == above[:, 1:]).all(0)


def _within_bin(ratios: Tensor, weight: Tensor, edges: Tensor) -> Tensor:
    """Scale each item in `ratios` (bin, input): the example then opens its row in `weight` (bin, input), whose output
    exceeds 0 above the bin's edge in `edges` (bin,), and leaves the next row closed; the last bin has no next row."""
    own, following = (ratios * weight).sum(1), (ratios[:-1] * weight[1:]).sum(1)
    factor = (own.maximum(edges) / own).clamp_min(0)
    factor[:-1] = torch.where(following > edges[1:], (edges[1:] / following).clamp_min(0), factor[:-1])
    return ratios * factor[:, None]
