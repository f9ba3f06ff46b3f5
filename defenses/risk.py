"""Leakage risk of layers, and slices of an update that carry equal shares of it (Risk-balanced §4)."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vjp, vmap

from bench import rng
from bench.defenses.base import Public

Tensors = Mapping[str, Tensor]
CHUNK = 25  # pictures at once


def layer_of(name: str) -> str:
    """The layer of a parameter: its module, so that a weight and its bias are one."""
    return name.rpartition(".")[0]


def layers(tensors: Tensors) -> dict[str, list[str]]:
    """Layer → names of its parameters, both in the mapping's order."""
    found: dict[str, list[str]] = {}
    for name in tensors:
        found.setdefault(layer_of(name), []).append(name)
    return found


def layer_risks(public: Public, *, directions: int) -> dict[str, float]:
    """Layer → mean over the pictures of ‖J‖_F, J = ∂(gradient of the layer)/∂(picture) (Risk-balanced eq. 2, p = 2).

    ‖J‖_F² is the mean of ‖Ju‖² over pictures u of signs (Hutchinson): `directions` of them, for all layers in
    one pass each.  With as many directions as a picture has values they are its axes, and the norm is exact.
    """
    pixels = public.inputs[0].numel()
    exact = directions >= pixels
    squares: dict[str, list[Tensor]] = {}
    for start in range(0, len(public.inputs), CHUNK):
        rows = slice(start, start + CHUNK)
        inputs, labels = public.inputs[rows], public.labels[rows]
        total: dict[str, Tensor] = {}
        for number in range(pixels if exact else directions):
            u = _axis(inputs, number) if exact else _signs(inputs, number, start)
            for name, value in _directional(public, inputs, labels, u).items():
                energy = value.flatten(1).square().sum(1)
                total[layer_of(name)] = total.get(layer_of(name), torch.zeros_like(energy)) + energy
        for layer, value in total.items():
            squares.setdefault(layer, []).append(value / (1 if exact else directions))
    return {layer: float(torch.cat(parts).sqrt().mean()) for layer, parts in squares.items()}


def equal_risk(tensors: Tensors, risks: Mapping[str, float], slices: int) -> tuple[int, ...]:
    """Where slices end, in coordinates of all tensors end to end: as near as blocks allow, each carries 1/s of the
    risk.  Blocks are of one size, the greatest common divisor of the layers'; a layer's risk is spread over its own.
    """
    size = block_size(tensors)
    each = [
        risks[layer] * size / _numel(tensors, names)
        for layer, names in layers(tensors).items()
        for _ in range(_numel(tensors, names) // size)
    ]
    return _ends(torch.tensor(each, dtype=torch.float64), size, slices)


def equal_size(tensors: Tensors, slices: int) -> tuple[int, ...]:
    """Where slices end that are equally long, as near as blocks allow (Risk-balanced's comparison, Table III)."""
    size = block_size(tensors)
    return _ends(torch.ones(_numel(tensors, list(tensors)) // size, dtype=torch.float64), size, slices)


def block_size(tensors: Tensors) -> int:
    """The greatest common divisor of the layers' sizes."""
    return reduce(math.gcd, (_numel(tensors, names) for names in layers(tensors).values()))


def rooted(public: Public, *, pictures: int, bias: float) -> Public:
    """The root set: so many public pictures, a share `bias` of them of the first one's class, the others of the
    other classes; where there are too few of either, fewer.  Without a bias the first that there are."""
    if bias == 0:
        rows = torch.arange(min(pictures, len(public.inputs)))
    else:
        of_class = public.labels == public.labels[0]
        many = round(bias * pictures)
        one = torch.nonzero(of_class)[:, 0][:many]
        rows = torch.cat([one, torch.nonzero(~of_class)[:, 0][: pictures - many]])
    return replace(public, inputs=public.inputs[rows], labels=public.labels[rows])


def _directional(public: Public, inputs: Tensor, labels: Tensor, u: Tensor) -> dict[str, Tensor]:
    """Each picture's gradient, differentiated along its u: name → (example, *shape)."""
    weights = dict(public.weights)

    def loss(given: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(public.model, given, (x[None],)), y[None])

    def one(x: Tensor, y: Tensor, along: Tensor) -> dict[str, Tensor]:
        gradient, pull = vjp(lambda given: grad(loss)(weights, given, y), x)[:2]
        # Jᵀv is linear in v, so that its own transpose at u is Ju: forward mode warns in torch 2.12
        nothing = {name: torch.zeros_like(value) for name, value in gradient.items()}
        found: dict[str, Tensor] = vjp(lambda v: pull(v)[0], nothing)[1](along)[0]
        return found

    found: dict[str, Tensor] = vmap(one)(inputs, labels, u)
    return {name: value.detach() for name, value in found.items()}


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
    """The blocks' ends at which the running total is nearest to each share of the whole; no slice is empty."""
    if not 1 <= slices <= len(each):
        raise ValueError(f"{slices} slices of {len(each)} blocks cannot be; ask for at most {len(each)}")
    total = each.cumsum(0) / each.sum()
    found, last = [], 0
    for number in range(1, slices):
        nearest = int((total - number / slices).abs().argmin()) + 1
        last = min(max(nearest, last + 1), len(each) - (slices - number))
        found.append(last * size)
    return (*found, len(each) * size)
