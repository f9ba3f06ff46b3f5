"""Leakage risk per layer, and slices of an update with equal risk (Risk-balanced §4)."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

import torch
from torch import Tensor
from torch.func import grad, vjp, vmap

from bench import rng
from bench.defenses.base import Public, Tensors
from bench.gradients import example_loss
from bench.record.groups import grouped
from bench.rows import rows

CHUNK = 25  # examples in a single batch


def layer_of(name: str) -> str:
    """Return the name of the layer to which a parameter `name` belongs, such as "fc" for "fc.weight" and "fc.bias"."""
    return name.rpartition(".")[0]


def layers(tensors: Tensors) -> dict[str, list[str]]:
    """Group parameter names by layer: layer → names, in the order of `tensors` (name → tensor)."""
    return grouped(tensors, layer_of)


def layer_risks(public: Public, *, directions: int) -> dict[str, float]:
    """Return the leakage risk of each layer, layer → risk: how much the layer's gradient changes with the example. The
    risk is the mean of ‖J‖_F over the examples in `public`, with J = ∂(layer gradient)/∂(example) at the weights in
    `public` (Risk-balanced eq. 2 with p = 2).

    ‖J‖_F² is estimated as the mean of ‖Ju‖² over `directions` random sign vectors u (Hutchinson), each for all layers
    at once. With at least as many directions as input values, u runs over the axes, and the norm is exact."""
    size = public.inputs[0].numel()
    exact = directions >= size
    squares: dict[str, list[Tensor]] = {}
    for start in range(0, len(public.inputs), CHUNK):
        part = slice(start, start + CHUNK)
        inputs, labels = public.inputs[part], public.labels[part]
        total: dict[str, Tensor] = {}
        for number in range(size if exact else directions):
            u = _axis(inputs, number) if exact else _signs(inputs, number, start)
            for name, value in _directional(public, inputs, labels, u).items():
                energy = rows(value, 1).square().sum(1)
                total[layer_of(name)] = total.get(layer_of(name), torch.zeros_like(energy)) + energy
        for layer, value in total.items():
            squares.setdefault(layer, []).append(value / (1 if exact else directions))
    return {layer: float(torch.cat(parts).sqrt().mean()) for layer, parts in squares.items()}


def equal_risk(tensors: Tensors, risks: Mapping[str, float], slices: int) -> tuple[int, ...]:
    """Cut an update, as a single vector, into `slices` ranges with about equal leakage risk; return the end position of
    each range. The defense Risk-balanced adds noise to some of these slices.

    - `tensors`: name → tensor; only names, order and sizes are used.
    - `risks`: layer → risk, from `layer_risks`.

    Slices consist of whole blocks. The size of a block is the greatest common divisor of the layer sizes, and the
    blocks of a layer share its risk equally. Raises `ValueError` for more slices than blocks."""
    size = block_size(tensors)
    each = [
        risks[layer] * size / _numel(tensors, names)
        for layer, names in layers(tensors).items()
        for _ in range(_numel(tensors, names) // size)
    ]
    return _ends(torch.tensor(each, dtype=torch.float64), size, slices)


def equal_size(tensors: Tensors, slices: int) -> tuple[int, ...]:
    """Cut an update, as a single vector, into `slices` slices with nearly equal lengths; return the end position of
    each slice. `tensors`: name → tensor; only names, order and sizes are used. Slices consist of whole blocks
    (`block_size`), as in Risk-balanced Table III."""
    size = block_size(tensors)
    return _ends(torch.ones(_numel(tensors, list(tensors)) // size, dtype=torch.float64), size, slices)


def block_size(tensors: Tensors) -> int:
    """Return the number of coordinates in a block, the smallest part of a slice of an update: the greatest common
    divisor of the layers' numbers of coordinates. `tensors`: name → tensor, the parameters of all layers."""
    return reduce(math.gcd, (_numel(tensors, names) for names in layers(tensors).values()))


def root_set(public: Public, *, examples: int, bias: float) -> Public:
    """Select the small public root set on which layer risks are measured: return `public` with these examples only.
    Bias 0 selects the first examples.

    - `examples`: number of examples; fewer if a class has too few.
    - `bias`: share of the set with the class of the first example; the rest has other classes."""
    if bias == 0:
        rows = torch.arange(min(examples, len(public.inputs)))
    else:
        of_class = public.labels == public.labels[0]
        count = round(bias * examples)
        others = torch.nonzero(~of_class)[:, 0][: examples - count]
        rows = torch.cat([torch.nonzero(of_class)[:, 0][:count], others])
    return replace(public, inputs=public.inputs[rows], labels=public.labels[rows])


def _directional(public: Public, inputs: Tensor, labels: Tensor, u: Tensor) -> dict[str, Tensor]:
    """Return Ju for each example, name → (example, *shape): the derivative of the example's weight gradient if its
    input moves in the direction `u` (example, *input shape)."""
    weights, loss = dict(public.weights), example_loss(public.model)

    def of_example(x: Tensor, y: Tensor, along: Tensor) -> dict[str, Tensor]:
        gradient, pull = vjp(lambda inputs: grad(loss)(weights, inputs, y), x)[:2]
        # Jᵀv is linear in v, and the transpose of this map at u is Ju; forward mode would warn in torch 2.12
        zeros = {name: torch.zeros_like(value) for name, value in gradient.items()}
        slopes: dict[str, Tensor] = vjp(lambda v: pull(v)[0], zeros)[1](along)[0]
        return slopes

    slopes: dict[str, Tensor] = vmap(of_example)(inputs, labels, u)
    return {name: value.detach() for name, value in slopes.items()}


def _signs(like: Tensor, number: int, start: int) -> Tensor:
    drawn = rng.generator(0, "risk", number, start).integers(0, 2, tuple(like.shape)) * 2 - 1
    return torch.from_numpy(drawn).to(like)


def _axis(like: Tensor, number: int) -> Tensor:
    axis = torch.zeros(like[0].numel(), dtype=like.dtype)
    axis[number] = 1
    return axis.reshape(like.shape[1:]).expand_as(like).contiguous()


def _numel(tensors: Tensors, names: list[str]) -> int:
    return sum(tensors[name].numel() for name in names)


def _ends(each: Tensor, size: int, slices: int) -> tuple[int, ...]:
    """Divide consecutive blocks into `slices` slices with nearly equal sums of `each` (block,), a weight such as the
    block's risk. Return the coordinate at which each slice ends; `size` is the number of coordinates in a block."""
    if not 1 <= slices <= len(each):
        raise ValueError(f"{slices} slices of {len(each)} blocks are impossible; take at most {len(each)}")
    total = each.cumsum(0) / each.sum()
    ends, last = [], 0
    for number in range(1, slices):
        nearest = int((total - number / slices).abs().argmin()) + 1
        last = min(max(nearest, last + 1), len(each) - (slices - number))
        ends.append(last * size)
    return (*ends, len(each) * size)
