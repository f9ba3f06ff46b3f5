"""Weights for the attack `bins` that hardly change in several local steps."""

import torch
from torch import Tensor

from bench.attacks.first_layer.rows import Rows
from bench.attacks.last_layer.score import last_layer
from bench.errors import NotApplicable
from bench.trip import Server

_MOVE = 0.3  # of the distance between two quantiles: an example's step may move a row's output so far
_UNEQUAL = 0.01  # of an example's gradient: rest from columns of the second layer which a step makes unequal
_OPEN = 0.5  # of the last layer's size over η: bias of the second layer, which keeps its units open
_SMALL = 0.3  # of this bias: outputs of the second layer
NO_THIRD = "several local steps move the rows of a net without a third layer; bins needs steps = 1 there"


def steady(
    server: Server, rows: Rows, weight: Tensor, bias: Tensor, levels: Tensor, expected: Tensor
) -> dict[str, Tensor]:
    """Choose the weights that a malicious server sends to clients with several local steps, name → (*shape): the chosen
    first two layers must hardly change during these steps, or the attack `bins` fails.

    A local step moves a row (neuron) by η δ x, with the learning rate η, an example x and δ = ∂loss/∂z at the row's
    output z; the step also makes the second layer's columns unequal. Both effects are proportional to δ, so the last
    layer gets small weights, which make δ small. Too small weights would fail: a client sends differences of float32
    weights, and rounding would hide them. The second layer's bias keeps all its units open (output above 0).

    - `server`: the server's knowledge before the round, with model, learning rate and batch size.
    - `rows`: the model's first two layers.
    - `weight` (row, input), `bias` (row,): chosen first layer, for inputs without normalisation, up to a common factor.
    - `levels` (unit, 1): common column of the second layer, up to a factor.
    - `expected` (example, input): public examples, similar to those behind a reading.

    Raises `NotApplicable` for a model whose second layer is the last."""
    last = last_layer(server)
    if last is None or last.path == rows.second.removesuffix(".") or rows.second.startswith("inserted."):
        raise NotApplicable(NO_THIRD)
    head = server.weights[last.name("weight")].double().cpu()
    size = head.square().mean().sqrt()
    inputs = rows.first.apply(expected)
    product = inputs.square().sum(1).mean() + 1  # x·x of an example, with the bias's 1
    outputs = expected @ weight[0] + bias[0]
    spacing = (outputs.quantile(0.9) - outputs.quantile(0.1)) / (0.8 * len(weight))
    units = (
        levels.T @ head.T
        if head.shape[1] == len(levels)
        else size * levels.square().sum().sqrt() * torch.ones(1, len(head))
    )
    delta = (units - units.mean()).abs().mean() / server.batch  # of an example, for a last layer of honest size
    examples = server.batch * server.steps
    small = (_UNEQUAL * _MOVE / product).sqrt() / (server.rate * delta * examples)
    delta = small * delta
    opened = _OPEN * small * size / server.rate
    ratio = _MOVE * spacing / (server.rate * delta * product)  # second layer's weights over the first layer's
    reached = (expected @ weight.T + bias).relu().sum(1).max() * levels.abs().max() * ratio
    factor = (_SMALL * opened / reached).sqrt()
    values = rows.of_first(factor * weight, factor * bias) | {
        f"{rows.second}weight": (factor * ratio * levels).expand(-1, len(weight)),
        f"{rows.second}bias": opened.expand(len(levels)),
        last.name("weight"): small * head,
    }
    return {name: values.get(name, value).to(value) for name, value in server.weights.items()}
