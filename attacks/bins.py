"""Bins: a server sorts a batch's examples into rows of its first fully connected layer."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bench.attacks.base import Attack, closed_form
from bench.attacks.first_layer.layer import refusal
from bench.attacks.first_layer.ratios import Gradient, honest_size, in_range, mean_gradient
from bench.attacks.first_layer.rows import NO_ROWS, Rows, public, rows_of, rows_to_choose
from bench.parameters import parameter
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction, Server


@dataclass(frozen=True, kw_only=True)
class Bins(Attack):
    """All rows of the first layer measure the same direction, with biases at public quantiles: row i opens for examples
    above quantile i. A difference between neighbouring rows' gradients belongs to the examples between both quantiles
    (a bin). A single example in a bin is recovered exactly, by the ratio dW / db between both differences.

    With n examples and N equally probable bins, an example shares its bin with no other example with probability
    (1 - 1/N)^(n - 1). The second layer has equal columns: then an example has an equal δ at all its open rows. The bin
    also gives the scale, if a defense scales weight and bias by different factors, such as a clip by tensor.

    Departure: the paper inserts two layers before the model; here the model's layers are used."""

    reference = "Fowl et al. 2022, ICLR (Robbing the Fed), in a layer that the model has"
    iterative = False
    most_examples = 1024
    servers = ("weights",)

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
        bias = -torch.cat([edges, closed])
        levels = torch.from_numpy(key.generator("levels").standard_normal(units))
        above = self.gain * honest_size(rows) * levels[:, None].expand(units, count)
        return rows.chosen(server, direction.expand(count, -1), bias, above, known)

    def refuses(self, reading: Reading) -> str | None:
        if reading.steps > 1:
            return "the weights of a later local step are not those of the server"
        rows = rows_of(reading)
        if rows is None:
            return refusal(reading) or NO_ROWS
        if not torch.equal(rows.weight, rows.weight[:1].expand_as(rows.weight)):
            return "the rows of its first layer are not alike; bins needs the weights of its own craft"
        return None

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        rows = rows_of(reading)
        assert rows is not None
        inputs, status = zip(
            *((self._one(reading, rows, each), each.status) for each in mean_gradient(reading, rows)), strict=True
        )
        return closed_form(reading, torch.stack(inputs).to(reading.public_mean), status=status)

    def _one(self, reading: Reading, rows: Rows, gradient: Gradient) -> Tensor:
        order = rows.bias.argsort(descending=True)  # the row with the lowest quantile first
        each = gradient.of_first[order]
        each = torch.cat([each[:-1] - each[1:], each[-1:]])
        ratios = _within_bin(rows.first.undo(each[:, :-1] / each[:, -1:]), rows.weight[0], -rows.bias[order])
        size = each[:, -1].abs() * in_range(ratios, reading.value_range, self.slack)
        best = size.argsort(descending=True)[: reading.examples]
        best = best[size[best] > gradient.rounding[order][best]]
        filled = reading.public_mean.double().flatten().repeat(reading.examples, 1)
        filled[: len(best)] = ratios[best]
        return filled.reshape(reading.examples, *reading.shape)


def _within_bin(ratios: Tensor, direction: Tensor, edges: Tensor) -> Tensor:
    """Scale each of the `ratios` (bin, input) so that its value along `direction` (input,) lies in its bin, between two
    of the rising `edges` (bin,); the last bin has no upper edge."""
    values = ratios @ direction
    inside = values.clamp(edges, torch.cat([edges[1:], edges.new_full((1,), torch.inf)]))
    return ratios * (inside / values).clamp_min(0)[:, None]
