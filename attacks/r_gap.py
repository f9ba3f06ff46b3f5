"""R-GAP: a closed form through convolutions, by least squares for each layer's input, from the last layer down."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.attacks.base import Attack, closed_form
from bench.attacks.chain.links import Affine, Link, Unchained, links
from bench.attacks.chain.recursion import Solved, solve
from bench.attacks.labels.head import usual
from bench.attacks.labels.infer import infer_labels, unreadable
from bench.attacks.objective.mismatch import mean_observation, observations, same_weights
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction, Tensors

_NOTES = (
    "cross entropy over the classes; ∂loss/∂z of a layer with a bias from its bias gradient; the authors take a binary "
    "loss and no biases",
    "gradient constraints scaled to the norm of the weight constraints",
)


@dataclass(frozen=True, kw_only=True)
class RGap(Attack):
    """Compute the example behind a gradient layer by layer, from the logits to the input, without optimisation.

    The gradient of the last layer's weights is (p - y) xᵀ: probabilities p, one-hot label y, the layer's input x. The
    activation's inverse gives the output z of the layer before; the chain rule gives k = ∂loss/∂z. A layer's input
    solves the equations of its weights, W x = z - b, and of its gradient, ∂loss/∂W, by least squares.

    A single example comes back exactly if each layer has as many independent equations as input values; a note names
    layers with fewer, which the pseudo-inverse solves. A constant factor on the whole gradient changes nothing if the
    last layer has a bias. Errors grow from layer to layer, so that noise stops the attack. The loss of a reading is the
    largest residual of a layer's equations, squared, as a share of the right side. Under several weights (rounds), the
    attack takes the example with the least loss."""

    reference = "Zhu & Blaschko 2021 (R-GAP), ICLR, §3, algorithm 1"
    takes = ("image", "table")
    iterative = False
    most_examples = 1

    def refuses(self, reading: Reading) -> str | None:
        if reading.examples > 1:
            return "it inverts the gradient of a single example"
        if reading.linked != "vector":
            return "it compares whole vectors, and this reading's coordinates are not linked"
        if reading.stepwise or not usual(reading):
            return "it inverts a gradient of the mean cross entropy, and no other update"
        try:
            _chain(reading, 0)
        except Unchained as reason:
            return f"its model {reason}"
        return unreadable(reading)

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        observed = observations(reading)
        labels = infer_labels(reading, mean_observation(observed))
        count = 1 if same_weights(reading) else len(observed)
        chains = [_chain(reading, at) for at in range(count)] * (len(observed) // count)
        found = [
            _best([solve(chain, _row(each, row), label) for chain, each in zip(chains, observed, strict=True)])
            for row, label in enumerate(labels[:, 0].tolist())
        ]
        mean = reading.public_mean.double().cpu()
        inputs = torch.stack([mean if each is None else each.x.reshape(reading.shape) for each in found])
        return closed_form(
            reading,
            inputs[:, None].to(next(iter(reading.values.values())).dtype),
            labels,
            loss=torch.tensor([1.0 if each is None else each.residual for each in found], dtype=torch.float64),
            status=tuple("diverged" if each is None else "ok" for each in found),
            notes=(*_NOTES, *_missing(chains[0], found)),
        )


def _chain(reading: Reading, at: int) -> list[Link]:
    weights = {name: value[at] for name, value in reading.weights.items() if name in reading.values}
    return links(reading.model, weights, reading.shape)


def _row(observed: Tensors, row: int) -> dict[str, Tensor]:
    return {name: value[row] for name, value in observed.items()}


def _best(solved: Sequence[Solved | None]) -> Solved | None:
    return min((each for each in solved if each is not None), key=lambda each: each.residual, default=None)


def _missing(chain: Sequence[Link], found: Sequence[Solved | None]) -> tuple[str, ...]:
    """Return a note for each layer with fewer independent equations than input values in some reading."""
    layers = [link for link in chain if isinstance(link, Affine)][-2::-1]
    ranks = [each.ranks for each in found if each is not None]
    if not ranks:
        return ()
    least = [min(each) for each in zip(*ranks, strict=True)]
    return tuple(
        f"layer {layer.prefix[:-1]}: rank {rank} of {size} input values; the pseudo-inverse leaves the others at 0"
        for layer, (rank, size) in zip(layers, least, strict=True)
        if rank < size
    )
