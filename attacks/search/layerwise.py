"""Values inside a ReLU net behind a single example's gradient, from the last layer to the first (R-GAP, Zhu & Blaschko
2021).

Layers l = 1, …, n are convolutions z_l = W_l ∗ a_(l-1) + b_l with values a_l = ReLU(z_l). a_0 is the example, and the
last layer is linear. The last layer's gradients are (p - y) a_nᵀ for the weight and p - y for the bias, with
probabilities p and the one-hot label y. They show a_n and δ_n = ∂loss/∂z_n exactly.

Each step of the descent searches a_(l-1), given a_l and δ_l. Three conditions are known: layer l's weight gradient is
linear in a_(l-1), with coefficients from δ_l; the positive outputs z_l are linear in a_(l-1); hidden values are not
negative. If these conditions fix a_(l-1), the descent goes on. Otherwise it ends at layer l: a_(l-1) is known only
along some directions."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.trip import Tensors

_RANK_ONE = (
    1e-4  # of the last gradient's norm: distance to rank one, above which the gradient is not a single example's
)
_KNOWN = 1e-4  # of the largest singular value: directions above are known from the weight's gradient
_INDEPENDENT = 1e-3  # of the largest singular value: independent conditions on the other directions
_PROJECTIONS = 300  # steps towards values that meet the linear conditions and are not negative
_ROUNDING = 1e-6  # of the largest value: smaller values count as zero
_NOISE = 3.0  # times the most negative value, whose truth is not negative
_SAME = 1e-3  # of the values' norm: two searches end at the same values, which are then the only possible values
_PLACES = 1024  # height times width of a layer's input, at most
_ROOM = 1 << 24  # numbers in the matrix of conditions on free directions, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Hidden values that a single example's gradient reveals in a chain of ReLU convolutions, down to the lowest layer
    l with a determined output. A search then starts from an example with these values. a_l is the output of layer l
    after the ReLU; tensors are in float64."""

    layer: int
    """Position of the convolution l in the sequence of modules."""
    directions: Tensor
    """Orthonormal directions over pixel positions at layer l's input: (direction, position). All channels have the same
    directions."""
    along: Tensor
    """Coordinates of the input a_(l-1) along these directions (channel, direction); the rest of a_(l-1) is unknown."""
    outputs: Tensor
    """Output a_l, known at all positions (channel, height, width)."""


def chain(model: nn.Module) -> list[nn.Conv2d] | None:
    """Return the model's convolutions if values inside the model can be computed layer by layer (`known_values`): the
    model must be a sequence of (convolution with bias, ReLU) × n, flattening, linear layer with bias. Otherwise None.
    """
    if not isinstance(model, nn.Sequential) or len(model) < 4:
        return None
    *body, flat, last = model
    convolutions, activations = body[::2], body[1::2]
    fits = (
        len(convolutions) == len(activations)
        and all(_plain(layer) for layer in convolutions)
        and all(type(layer) is nn.ReLU for layer in activations)
        and type(flat) is nn.Flatten
        and type(last) is nn.Linear
        and last.bias is not None
    )
    return [layer for layer in convolutions if isinstance(layer, nn.Conv2d)] if fits else None


def _plain(layer: nn.Module) -> bool:
    return (
        type(layer) is nn.Conv2d
        and layer.groups == 1
        and layer.bias is not None
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
        and set(layer.dilation) == {1}
    )


def known_values(layers: list[nn.Conv2d], weights: Tensors, gradients: Tensors, inputs: list[Tensor]) -> Known | None:
    """Compute values inside a ReLU net from a single example's gradient, from the last layer down to the lowest layer
    that the gradient determines.

    - `layers`: the model's convolutions, in the order of the forward pass.
    - `weights`, `gradients`: name → (*shape), in float64.
    - `inputs`: starts of the search for hidden values: means over public examples, (channel, height, width), at each
      convolution's input and at the linear layer's input.

    Return None if the gradient is not finite or not that of a single example, if a layer has no positive value, or if
    an input is too large."""
    last = f"{2 * len(layers) + 1}."
    errors, of_weight = gradients[f"{last}bias"], gradients[f"{last}weight"]
    energy = errors @ errors
    if not bool(energy > 0) or not all(bool(torch.isfinite(value).all()) for value in gradients.values()):
        return None
    values = (errors @ of_weight) / energy
    if bool((of_weight - errors[:, None] * values).norm() > _RANK_ONE * of_weight.norm()):
        return None
    values = values.reshape(inputs[-1].shape)
    delta = (weights[f"{last}weight"].T @ errors).reshape(values.shape)
    least = _ROUNDING * values.max()
    for number in range(len(layers) - 1, -1, -1):
        layer, below, prefix = layers[number], inputs[number], f"{2 * number}."
        if not bool((values > least).any()) or below[0].numel() > _PLACES:
            return None
        values = values.where(values > least, 0.0)
        delta = delta * (values > 0)
        directions, along = _directions(delta, layer, gradients[f"{prefix}weight"], below.shape)
        known = Known(layer=2 * number, directions=directions, along=along, outputs=values)
        if number == 0:
            return known
        solved = _solved(known, layer, weights[f"{prefix}weight"], weights[f"{prefix}bias"], below)
        if solved is None:
            return known
        delta = _backwards(delta, layer, weights[f"{prefix}weight"], below.shape)
        values, least = solved
    return None


def _directions(delta: Tensor, layer: nn.Conv2d, gradient: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Return the directions over pixel positions in which the weight `gradient` shows the layer's input. The directions
    are (direction, position), equal for all channels. The input along them is (channel, direction). `delta` is δ at the
    layer's output, and `shape` the input's shape."""
    places = shape[1] * shape[2]
    basis = torch.eye(places, dtype=delta.dtype).reshape(places, 1, shape[1], shape[2])
    patches = F.unfold(basis, _pair(layer.kernel_size), padding=_pair(layer.padding), stride=_pair(layer.stride))
    effect = torch.einsum("pkl,ol->okp", patches, delta.flatten(1)).flatten(0, 1)
    shown = gradient.permute(0, 2, 3, 1).flatten(0, 2)  # (output · kernel place, channel)
    if len(effect) < places:
        energies, left = torch.linalg.eigh(effect @ effect.T)
        kept = energies > _KNOWN**2 * energies[-1]
        singular = energies[kept].sqrt()
        return (left[:, kept].T @ effect) / singular[:, None], (left[:, kept].T @ shown).T / singular
    energies, right = torch.linalg.eigh(effect.T @ effect)
    kept = energies > _KNOWN**2 * energies[-1]
    directions = right[:, kept].T
    return directions, (directions @ (effect.T @ shown)).T / energies[kept]


def _solved(
    known: Known, layer: nn.Conv2d, weight: Tensor, bias: Tensor, typical: Tensor
) -> tuple[Tensor, Tensor] | None:
    """Return the input of a convolution `layer`, (channel, height, width), and the limit below which a value of this
    input counts as zero. The input follows from the values `known` at the layer's output, and from the condition that
    no input value is negative. `weight` and `bias` are the layer's parameters. `typical` is the mean input over public
    examples, the start of the search. Return None if several inputs fit, or if the linear conditions need too much
    memory."""
    channels = typical.shape[0]
    active = (known.outputs > 0).flatten()

    def outputs(x: Tensor) -> Tensor:
        return F.conv2d(x.unflatten(2, typical.shape[1:]), weight, None, layer.stride, layer.padding).flatten(1)[
            :, active
        ]

    values = known.along @ known.directions  # (channel, place), 0 along free directions
    free = torch.linalg.qr(known.directions.T, mode="complete").Q[:, len(known.directions) :].T  # (direction, place)
    unknown = channels * len(free)
    if unknown * typical.numel() > _ROOM:
        return None
    if unknown:
        moves = torch.einsum("cd,fp->cfdp", torch.eye(channels).to(free), free).flatten(0, 1)
        target = (known.outputs - bias[:, None, None]).flatten()[active] - outputs(values[None])[0]
        left, singular, right = torch.linalg.svd(outputs(moves).T, full_matrices=False)
        shown = singular > _INDEPENDENT * singular[0]
        right = right[shown]
        step = right.T @ ((left[:, shown].T @ target) / singular[shown])
        values = values + step.unflatten(0, (channels, -1)) @ free
        unknown -= len(right)
    if unknown:
        start = typical.flatten(1)
        first, second = (_not_negative(values, free, right, x) for x in (start, torch.zeros_like(start)))
        if bool((first - second).norm() > _SAME * first.norm()):
            return None
        values = first
    least = torch.maximum(-_NOISE * values.min(), _ROUNDING * values.max())
    return values.reshape(typical.shape), least


def _not_negative(values: Tensor, free: Tensor, shown: Tensor, start: Tensor) -> Tensor:
    """Return nonnegative values (channel, position) that meet the same linear conditions as `values`. `free`
    (direction, position) are the directions in which values may change. `shown` are the changes that would violate a
    condition, as orthonormal rows. The Douglas-Rachford iteration begins at `start`."""

    def met(x: Tensor) -> Tensor:
        step = ((x - values) @ free.T).flatten()
        step = step - shown.T @ (shown @ step)
        moved: Tensor = values + step.unflatten(0, (len(values), -1)) @ free
        return moved

    x = start
    for _ in range(_PROJECTIONS):
        positive = x.clamp_min(0)
        x = x + met(2 * positive - x) - positive
    return met(x.clamp_min(0))


def _backwards(delta: Tensor, layer: nn.Conv2d, weight: Tensor, shape: torch.Size) -> Tensor:
    stride, padding, kernel = _pair(layer.stride), _pair(layer.padding), _pair(layer.kernel_size)
    missing = [
        shape[axis + 1] - ((delta.shape[axis + 1] - 1) * stride[axis] - 2 * padding[axis] + kernel[axis])
        for axis in (0, 1)
    ]
    below: Tensor = F.conv_transpose2d(delta[None], weight, None, stride, padding, output_padding=missing)
    return below[0]


def _pair(value: object) -> tuple[int, int]:
    assert isinstance(value, tuple)
    return int(value[0]), int(value[1])
