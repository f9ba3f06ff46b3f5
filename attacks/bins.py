"""Bins: a server sorts a batch's examples into rows of its first fully connected layer."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from bench.attacks.base import Attack, closed_form
from bench.attacks.first_layer.below import Below
from bench.attacks.first_layer.binned import Binned, alike, rising
from bench.attacks.first_layer.disguise import unseen
from bench.attacks.first_layer.layer import refusal
from bench.attacks.first_layer.ratios import Ratios, by_agreement, honest_size
from bench.attacks.first_layer.rows import NO_ROWS, PUBLIC, draws, public, rows_of, rows_to_choose
from bench.attacks.first_layer.steady import steady
from bench.attacks.objective.mismatch import by_weights
from bench.attacks.search.features import images_of
from bench.errors import NotApplicable
from bench.parameters import parameter
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction, Server

_NEAR = 0.02  # root mean square difference of the same example in two rounds, in widths of the range
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

    `disguise` hides the attack from a client that inspects the weights: no row is a multiple of another row. Noise in
    directions with little variation among public examples fills each row up to its honest norm, and the second layer's
    columns are equal only within blocks of rows.

    In several rounds with other weights (`server = "rounds"`) each further round measures another random direction. If
    a share p of the examples is single in a round, an example is single in at least one of r rounds with probability 1
    - (1 - p)^r. A bin with two examples gives a mixture of both. Such a mixture is ranked last if, in another round, no
    example is in the bin where the mixture would be.

    In a model with convolutions before the first fully connected layer, the bins hold features. The server raises the
    convolutions' biases until no ReLU cuts off a value; features are then maxima (pooling) of linear functions, and a
    search finds each image from its features (`search/features.py`).

    With several local steps, the chosen weights must change little during the steps: `first_layer/steady.py` makes the
    steps small, in a net with a third layer.

    Departure: the paper inserts two layers before the model. Here the model's own layers are used with the grant
    `server = "weights"`, and inserted layers with `server = "layers"`."""

    reference = "Fowl et al. 2022, ICLR (Robbing the Fed), also in a layer that the model has"
    iterative = False
    most_examples = 1024
    servers = ("weights", "rounds", "inconsistent", "layers")

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
        rows = rows_to_choose(server, behind=True)
        if rows.below is not None:
            if server.steps > 1:
                raise NotApplicable("several local steps move convolutions; bins needs steps = 1 behind them")
            below = rows.below.opened(server.public_inputs[:PUBLIC])
            server, rows = replace(server, weights=below.weights), replace(rows, below=below)
        known, (units, count) = public(server, rows), rows.above.shape
        direction = torch.ones(known.shape[1], dtype=torch.float64)
        if self.direction == "random" or server.finished:
            direction = torch.from_numpy(draws(server, key, "direction").standard_normal(known.shape[1]))
        values, bins = known @ direction, min(count, self.rows or count)
        edges = values.quantile(torch.arange(bins, dtype=torch.float64) / bins)
        closed = (values.max() + 10 * (values.max() - values.min())).expand(count - bins)
        weight, bias = direction.expand(count, -1), -torch.cat([edges, closed])
        block = _BLOCK if self.disguise else count
        levels = torch.from_numpy(draws(server, key, "levels").standard_normal((units, -(-count // block))))
        if server.steps > 1:
            if self.disguise:
                raise NotApplicable("a disguise holds for a single local step; take disguise = 0")
            return steady(server, rows, weight, bias, levels[:, :1], known)
        above = self.gain * honest_size(rows) * levels.repeat_interleave(block, 1)[:, :count]
        if not self.disguise:
            return rows.chosen(server, weight, bias, above, known)
        above = above * self.gain * honest_size(rows) / above.square().mean().sqrt()
        weight, bias = unseen(weight, bias, rows.weight, known, self.disguise, draws(server, key, "disguise"))
        order = torch.from_numpy(draws(server, key, "order").permutation(count))
        return rows.chosen(server, weight[order], bias[order], above[:, order], known, limit=False)

    def refuses(self, reading: Reading) -> str | None:
        rows = rows_of(reading, behind=True)
        if rows is None:
            return refusal(reading) or NO_ROWS
        if not alike(rows.above[:, rising(reading, rows)]).any():
            return "the second layer's columns are not alike; bins needs the weights of its own craft"
        return None

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        rounds = [Binned.of(part, self.slack) for part in by_weights(reading)]
        low, high = rounds[0].input_range
        features, status = [], []
        for row in range(len(reading)):
            singles = Ratios.united([each.singles[row] for each in rounds])
            ratios = singles.values
            if len(rounds) > 1:
                ratios, agreeing = by_agreement(ratios, singles.size, _NEAR * (high - low))
                mixture = torch.stack([each.refutes(ratios, row) for each in rounds]).any(0) & (agreeing == 1)
                ratios = ratios[mixture.long().argsort(stable=True)]
            features.append(ratios[: reading.examples])
            status.append(singles.status)
        found, evaluations = _examples(features, rounds[0].rows.below, reading)
        inputs = reading.public_mean.double().repeat(len(reading), reading.examples, *[1] * len(reading.shape))
        for row, each in enumerate(found):
            inputs[row, : len(each)] = each.reshape(-1, *reading.shape)
        result = closed_form(reading, inputs.to(reading.public_mean), status=tuple(status))
        return replace(result, evaluations=evaluations)


def _examples(features: list[Tensor], below: Below | None, reading: Reading) -> tuple[list[Tensor], Tensor]:
    """Return the examples (example, *value) with the first layer's inputs `features` (example, input) for each reading,
    and the evaluations of a search (reading,); without convolutions `below`, inputs are examples."""
    if below is None:
        return features, torch.zeros(len(reading), dtype=torch.long)
    counts = [len(each) for each in features]
    images, spent = images_of(below, torch.cat(features), reading)
    evaluations = [-(-int(each.sum()) // reading.examples) for each in spent.split(counts)]
    return list(images.double().cpu().split(counts)), torch.tensor(evaluations)
