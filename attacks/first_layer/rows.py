"""Chosen weights for a fully connected first layer with ReLU, and for the fully connected layer above.

Row i of the first layer opens for an example x if z_i = w_i·x + b_i > 0. Its gradients are dW_i = Σ δ_in x_n and db_i =
Σ δ_in over the examples n that open the row, with δ_in = ∂loss/∂z_i. A single open example is the ratio dW_i / db_i."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from bench.attacks.first_layer.below import Below
from bench.attacks.first_layer.layer import FirstLayer, first_layer, first_weights
from bench.errors import NotApplicable
from bench.rng import Key
from bench.trip import Reading, Server

PUBLIC = 4096  # public examples for quantiles and for the spread of the second layer's outputs
NO_ROWS = "its first layer is no fully connected layer with bias, followed by ReLU and a second such layer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A model's first two fully connected layers with a ReLU between: the layers whose weights a malicious server
    chooses, and from whose gradients an attack computes examples. A row is a first-layer neuron, a unit a second-layer
    neuron."""

    first: FirstLayer
    """First layer, with the input normalisation."""
    second: str
    """Prefix of the second layer's parameter names, such as "3."."""
    weight: Tensor
    """First layer's weight (row, input) for unnormalised inputs: the model's input normalisation is included;
    float64."""
    bias: Tensor
    """First layer's bias (row,) for unnormalised inputs: the model's input normalisation is included; float64."""
    above: Tensor
    """Second layer's weight (unit, row), in float64."""
    below: Below | None = None
    """Convolutions below the first fully connected layer, whose inputs are then features; None: examples."""

    def inputs(self, examples: Tensor) -> Tensor:
        """Return the first layer's inputs for `examples` (example, *shape): the examples as vectors, or their features;
        (example, input) in float64, on the CPU."""
        return examples.flatten(1).double().cpu() if self.below is None else self.below.features_of_all(examples)

    def input_range(self, known: Reading) -> tuple[float, float]:
        """Return the smallest and the largest value of the first layer's inputs: the data's range, or that of the
        features of public examples. `known`: the attacked readings, source of both."""
        if self.below is None:
            return known.value_range
        features = self.inputs(known.public_inputs[:PUBLIC])
        return float(features.min()), float(features.max())

    def outputs(self, inputs: Tensor) -> Tensor:
        """Return the first layer's outputs z (example, row) for `inputs` (example, input), before the ReLU. A row is a
        neuron."""
        return inputs @ self.weight.T + self.bias

    def chosen(
        self, server: Server, weight: Tensor, bias: Tensor, above: Tensor, expected: Tensor, *, limit: bool = True
    ) -> dict[str, Tensor]:
        """Build the model's weights that a malicious server sends: chosen first two layers, all other layers unchanged.
        Return name → (*shape).

        - `server`: the server's knowledge before the round, with the model's weights.
        - `weight` (row, input), `bias` (row,): chosen first layer, for inputs without normalisation.
        - `above` (unit, row): chosen weight of the second layer.
        - `expected` (example, input): public examples, similar to those behind a reading.
        - `limit`: True multiplies the first layer by a factor, so that the second layer's outputs are within ±1 for the
          `expected` examples, and sets the second layer's bias to 0: the loss then does not saturate, however large
          `above` is, and each example keeps its gradient. False keeps the first layer as given; the second layer's bias
          centres its outputs."""
        reached = (expected @ weight.T + bias).relu() @ above.T
        factor = 1 / reached.abs().max().clamp_min(1e-12) if limit else 1.0
        values = self.of_first(factor * weight, factor * bias) | {
            f"{self.second}weight": above,
            f"{self.second}bias": torch.zeros(len(above)) if limit else -reached.mean(0),
        }
        return {name: values.get(name, value).to(value) for name, value in server.weights.items()}

    def of_first(self, weight: Tensor, bias: Tensor) -> dict[str, Tensor]:
        """Return the first layer's parameters, name → (*shape), that give the same outputs for normalised inputs as
        `weight` (row, input) and `bias` (row,) for inputs without normalisation."""
        weight = weight / self.first.factor
        return {f"{self.first.prefix}weight": weight, f"{self.first.prefix}bias": bias - weight @ self.first.offset}


def rows_of(known: Reading | Server, *, behind: bool = False) -> Rows | None:
    """Return the first two fully connected layers of a model, with their weights. Return None unless the model has a
    linear layer with bias, a ReLU, and a second linear layer with bias, at the beginning or (with `behind`) behind
    convolutions.

    - `known`: source of model and weights: a reading, or a server's knowledge before the round.
    - `behind`: True also takes two such layers behind convolutions."""
    if not known.kind.differentiable:
        return None
    first, weights = first_layer(known), first_weights(known)
    if first is None and not (behind and known.kind.spatial):
        return None
    like = next(iter(weights.values()))
    calls: list[tuple[str, nn.Module, Tensor, Tensor]] = []

    def keep(path: str) -> object:
        def hook(layer: nn.Module, arguments: tuple[Tensor, ...], out: Tensor) -> None:
            calls.append((path, layer, arguments[0].detach().clone(), out.detach().clone()))

        return hook

    handles = [
        layer.register_forward_hook(keep(path), prepend=True)
        for path, layer in known.model.named_modules()
        if next(layer.parameters(recurse=False), None) is not None
    ]
    probe = torch.linspace(-3, 3, 2 * known.public_inputs[0].numel()).to(like).reshape(2, *known.shape)
    try:
        with torch.no_grad():
            functional_call(known.model, weights, (probe,))
    finally:
        for handle in handles:
            handle.remove()
    below = None
    if first is None:
        convolutions, calls = _behind(calls)
        if not convolutions or not calls:
            return None
        hidden, layer, inputs, _ = calls[0]
        if type(layer) is not nn.Linear or layer.bias is None or inputs.shape != (2, layer.in_features):
            return None
        below = Below(
            model=known.model, weights=weights, convolutions=convolutions, layer=hidden, shape=tuple(known.shape)
        )
        ones = torch.ones(layer.in_features, dtype=torch.float64)
        first = FirstLayer(prefix=f"{hidden}.", factor=ones, offset=torch.zeros_like(ones))
    if len(calls) < 2:
        return None
    (_, _, _, out), (path, layer, inputs, _) = calls[:2]
    if type(layer) is not nn.Linear or layer.bias is None or inputs.shape != out.shape:
        return None
    if not torch.equal(inputs, out.relu()) or sum(called is layer for _, called, _, _ in calls) > 1:
        return None
    weight, bias, above = (
        weights[name].detach().double().cpu()
        for name in (f"{first.prefix}weight", f"{first.prefix}bias", f"{path}.weight")
    )
    return Rows(
        first=first,
        second=f"{path}.",
        weight=weight * first.factor,
        bias=bias + weight @ first.offset,
        above=above,
        below=below,
    )


_Call = tuple[str, nn.Module, Tensor, Tensor]


def _behind(calls: list[_Call]) -> tuple[tuple[str, ...], list[_Call]]:
    """Divide a pass's `calls` into the paths of the convolutions with bias at the beginning, each used once, and the
    calls behind them."""
    count = next((n for n, (_, layer, _, _) in enumerate(calls) if type(layer) is not nn.Conv2d), len(calls))
    layers = [layer for _, layer, _, _ in calls]
    plain = all(layer.bias is not None and layers.count(layer) == 1 for layer in layers[:count])
    return tuple(path for path, *_ in calls[:count]) if plain else (), calls[count:]


def rows_to_choose(server: Server, *, behind: bool = False) -> Rows:
    """Return the first two fully connected layers in the model of `server`, for an attack that chooses their weights.
    `behind` True also takes layers behind convolutions. Raises `NotApplicable` unless both layers have a bias, with a
    ReLU between."""
    rows = rows_of(server, behind=behind)
    if rows is None:
        raise NotApplicable(NO_ROWS)
    return rows


def draws(server: Server, key: Key, purpose: str) -> np.random.Generator:
    """Return a random generator for the weights that a malicious server chooses. Each round in which `server` chooses
    weights has other random numbers. `key` is the attack's key; `purpose` is a word that separates several generators,
    such as "rows"."""
    return key.generator(purpose, *([server.finished] if server.finished else []))


def public(known: Reading | Server, rows: Rows) -> Tensor:
    """Return the inputs of the first layer in `rows` for at most 4096 public examples: (example, input) in float64. An
    attack learns from them which outputs to expect from victims. `known` is a reading, or the server's knowledge before
    the round."""
    return rows.inputs(known.public_inputs[:PUBLIC])
