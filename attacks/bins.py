"""Bins: a server sorts a batch's examples into rows of its first fully connected layer."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bench.attacks.base import Attack, closed_form
from bench.attacks.first_layer.disguise import unseen
from bench.attacks.first_layer.layer import refusal
from bench.attacks.first_layer.ratios import Gradient, honest_size, in_range, mean_gradient
from bench.attacks.first_layer.rows import NO_ROWS, Rows, public, rows_of, rows_to_choose
from bench.parameters import parameter
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction, Server

_BLOCK = 20  # rows with equal columns in the second layer behind a disguise; a block's last bin is lost


@dataclass(frozen=True, kw_only=True)
class Bins(Attack):
    """Attack by a server that chooses the weights: the first layer sorts a batch's examples into bins, and a single
    example in a bin is recovered exactly.

    All rows (neurons) of the first layer measure the same direction, with biases at quantiles over public examples. Row
    i opens (its output exceeds 0) for examples above quantile i. The difference between the gradients of two
    neighbouring rows belongs to the examples between both quantiles, a bin. For a single example in a bin, the example
    is this difference in the weight gradient divided by the difference in the bias gradient.

    With n examples and N equally probable bins, an example shares its bin with no other example with probability (1 -
    1/N)^(n - 1). The second layer has equal columns: then an example has an equal δ (∂loss/∂z at the first layer's
    output z) at all its open rows. A defense may scale weight and bias by different factors, such as a clip by tensor;
    the example's scale is then the nearest scale inside the bin.

    With `disguise`, no row is a multiple of another row. Noise in directions with little variation among public
    examples fills each row up to its honest norm, and the second layer's columns are equal only within blocks of rows.

    Departure: the paper inserts two layers before the model. Here the model's own layers are used with the grant
    `server = "weights"`, and inserted layers with `server = "layers"`."""

    reference = "Fowl et al. 2022, ICLR (Robbing the Fed), also in a layer that the model has"
    iterative = False
    most_examples = 1024
    servers = ("weights", "inconsistent", "layers")

    direction: Literal["brightness", "random"] = parameter(
        "brightness",
        "direction that all rows measure: the mean over an example's values, or a random one",
        source="paper",
    )
    rows: int | None = parameter(
        None,
        "number of bins; none: one per row; fewer bins survive a defense that sends few values",
        source="ours",
        low=2,
    )
    gain: float = parameter(
        1e6,
        "size of the second layer's weights",
        unit="of the honest weights' root mean square",
        source="ours",
        above=0,
    )
    disguise: float = parameter(
        0.0,
        "share of noise in each first-layer row of honest norm; 0: plain rows; needs gain 1 to keep honest sizes",
        unit="of the row's squared norm",
        source="ours",
        low=0,
        high=0.999,
    )
    slack: float = parameter(
        0.05,
        "root mean square distance outside the data's range allowed for an example",
        unit="widths of the range",
        source="ours",
        low=0,
    )

    def craft(self, server: Server, key: Key) -> dict[str, Tensor]:
        rows = rows_to_choose(server)
        known, (units, count) = public(server), rows.above.shape
        direction = torch.ones(known.shape[1], dtype=torch.float64)
        if self.direction == "random":
            direction = torch.from_numpy(key.generator("direction").standard_normal(known.shape[1]))
        values, bins = known @ direction, min(count, self.rows or count)
        edges = values.quantile(torch.arange(bins, dtype=torch.float64) / bins)
        closed = (values.max() + 10 * (values.max() - values.min())).expand(count - bins)
        weight, bias = direction.expand(count, -1), -torch.cat([edges, closed])
        block = _BLOCK if self.disguise else count
        levels = torch.from_numpy(key.generator("levels").standard_normal((units, -(-count // block))))
        above = self.gain * honest_size(rows) * levels.repeat_interleave(block, 1)[:, :count]
        if not self.disguise:
            return rows.chosen(server, weight, bias, above, known)
        above = above * self.gain * honest_size(rows) / above.square().mean().sqrt()
        weight, bias = unseen(weight, bias, rows.weight, known, self.disguise, key.generator("disguise"))
        order = torch.from_numpy(key.generator("order").permutation(count))
        return rows.chosen(server, weight[order], bias[order], above[:, order], known, limit=False)

    def refuses(self, reading: Reading) -> str | None:
        if reading.steps > 1:
            return "the weights of a later local step are not those of the server"
        rows = rows_of(reading)
        if rows is None:
            return refusal(reading) or NO_ROWS
        if not _alike(rows.above[:, _rising(reading, rows)]).any():
            return "the second layer's columns are not alike; bins needs the weights of its own craft"
        return None

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        rows = rows_of(reading)
        assert rows is not None
        inputs, status = zip(
            *((self._one(reading, rows, each), each.status) for each in mean_gradient(reading, rows)), strict=True
        )
        return closed_form(reading, torch.stack(inputs).to(reading.public_mean), status=status)

    def _one(self, reading: Reading, rows: Rows, gradient: Gradient) -> Tensor:
        order = _rising(reading, rows)
        each = gradient.of_first[order]
        each = torch.cat([each[:-1] - each[1:], each[-1:]])
        ratios = _within_bin(rows.first.undo(each[:, :-1] / each[:, -1:]), rows.weight[order], -rows.bias[order])
        size = each[:, -1].abs() * in_range(ratios, reading.value_range, self.slack)
        size[:-1] *= _alike(rows.above[:, order])
        best = size.argsort(descending=True)[: reading.examples]
        best = best[size[best] > gradient.rounding[order][best]]
        filled = reading.public_mean.double().flatten().repeat(reading.examples, 1)
        filled[: len(best)] = ratios[best]
        return filled.reshape(reading.examples, *reading.shape)


def _rising(reading: Reading, rows: Rows) -> Tensor:
    """Return the order of the rows (row,) from the lowest quantile to the highest, by their outputs at the public mean
    of `reading`."""
    mean = reading.public_mean.double().cpu().flatten()
    return rows.outputs(mean).argsort(descending=True)


def _alike(above: Tensor) -> Tensor:
    """Return which neighbouring columns of the second layer's weight `above` (unit, row) are equal, (row - 1,)."""
    return (above[:, :-1] == above[:, 1:]).all(0)


def _within_bin(ratios: Tensor, weight: Tensor, edges: Tensor) -> Tensor:
    """Scale each of the `ratios` (bin, input) so that the example opens its row of `weight` (bin, input), whose output
    exceeds 0 above the bin's edge in `edges` (bin,), and leaves the next row closed; the last bin has no next row."""
    own, following = (ratios * weight).sum(1), (ratios[:-1] * weight[1:]).sum(1)
    factor = (own.maximum(edges) / own).clamp_min(0)
    factor[:-1] = torch.where(following > edges[1:], (edges[1:] / following).clamp_min(0), factor[:-1])
    return ratios * factor[:, None]
