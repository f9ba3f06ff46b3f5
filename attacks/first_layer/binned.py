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
    """Bins in a round, for a batch with several readings (observed updates)."""

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
        """Read a round's bins. A bin holds the examples that open a row (neuron) of the first layer but not the next
        row; its gradient is the difference between both rows' gradients.

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
        """Return a mask (ratio,) of the `ratios` (ratio, input), possible examples, that this round refutes: the bin in
        which such an example would lie is empty. `row` is the reading's position in the batch."""
        outputs = self.rows.outputs(ratios)[:, self.order]
        edge = _EDGE * outputs.abs().amax(1, keepdim=True)
        low, high = ((outputs > limit).sum(1) - 1 for limit in (edge, -edge))
        below = torch.cat([torch.zeros(1, dtype=torch.long), self.occupied[row].long().cumsum(0)])
        return (low >= 0) & (below[high + 1] == below[low.clamp_min(0)])  # below all quantiles there is no bin


def rising(reading: Reading, rows: Rows) -> Tensor:
    """Return the indices (row,) that sort `rows` of the first layer by threshold, from the lowest quantile to the
    highest. A row with a lower threshold has a larger output for the public mean image in `reading`."""
    return rows.outputs(rows.inputs(reading.public_mean[None]))[0].argsort(descending=True)


def alike(above: Tensor) -> Tensor:
    """Return which neighbouring columns are equal in the second layer's weight `above` (unit, row): (row - 1,)."""
    return (above[:, :-1] == above[:, 1:]).all(0)


def _within_bin(ratios: Tensor, weight: Tensor, edges: Tensor) -> Tensor:
    """Scale each item in `ratios` (bin, input): the example then opens its row in `weight` (bin, input), whose output
    exceeds 0 above the bin's edge in `edges` (bin,), and leaves the next row closed; the last bin has no next row."""
    own, following = (ratios * weight).sum(1), (ratios[:-1] * weight[1:]).sum(1)
    factor = (own.maximum(edges) / own).clamp_min(0)
    factor[:-1] = torch.where(following > edges[1:], (edges[1:] / following).clamp_min(0), factor[:-1])
    return ratios * factor[:, None]
