"""The links of a model that is a chain: affine layers as matrices, activations with an inverse, and reshapes.

Vectors are flat: a picture (channel, height, width) is a vector (value,). Tensors are in float64 on the CPU."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.trip import Tensors

_SAME = (nn.Flatten, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)  # as flat vectors, in eval mode
_LARGEST = 3 * 10**7  # numbers in a layer's equations: 240 MB
_INSIDE = 1e-12  # least distance of a value from the limits of an activation's range
_OFF = 1e-4  # of the largest output: smaller outputs of a ReLU are rounding, and count as 0


class Unchained(Exception):
    """Error for a model that is no chain of invertible links; the message continues the words "its model"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Affine:
    """A layer z = W x + b, fully connected or convolutional, between the flat input x (value,) and the flat output z
    (value,)."""

    prefix: str
    """Prefix of the layer's parameter names, such as "fc1."."""
    taps: Tensor
    """Positions of the input values that output position l reads, (value of a kernel, position): index into x plus 1,
    or 0 in the padding. A fully connected layer has a single position."""
    kernel: Tensor
    """Weights (output channel, value of a kernel)."""
    bias: Tensor | None
    """Biases (output channel,), None without."""
    inputs: int
    """Number of input values."""

    @property
    def connected(self) -> bool:
        """True for a fully connected layer."""
        return self.taps.shape[1] == 1

    def matrix(self) -> Tensor:
        """Return W, (output value, input value)."""
        channels, (values, positions) = len(self.kernel), self.taps.shape
        at = self.taps.T.expand(channels, positions, values).reshape(-1, values)
        of = self.kernel[:, None].expand(channels, positions, values).reshape(-1, values)
        return torch.zeros(len(at), self.inputs + 1, dtype=of.dtype).scatter_add_(1, at, of)[:, 1:]

    def by_gradient(self, delta: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Return the linear equations that the weight gradient gives for the layer's unknown input x: their matrix
        (equation, input value) and their right side (equation,). An attack solves these equations for x, together with
        W x = z - b.

        - `delta` (output value,): k, the derivative ∂loss/∂z.
        - `gradient` (output channel, value of a kernel): ∂loss/∂W.

        Each weight's gradient is a sum of input values times k. For a fully connected layer, k xᵀ = ∂loss/∂W; the
        result is then the shorter system |k| x = (∂loss/∂W)ᵀk / |k| with the same least squares."""
        if self.connected:
            size = delta.norm().clamp_min(1e-300)
            return size * torch.eye(self.inputs, dtype=delta.dtype), gradient.T @ (delta / size)
        channels, (values, positions) = len(self.kernel), self.taps.shape
        at = self.taps.expand(channels, values, positions).reshape(-1, positions)
        of = delta.reshape(channels, 1, positions).expand(channels, values, positions).reshape(-1, positions)
        matrix = torch.zeros(len(at), self.inputs + 1, dtype=of.dtype).scatter_add_(1, at, of)[:, 1:]
        return matrix, gradient.flatten()

    def offset(self) -> Tensor | float:
        """Return the bias of each output value (output value,); 0 without a bias."""
        return 0.0 if self.bias is None else self.bias.repeat_interleave(self.taps.shape[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """An increasing function σ of each value."""

    layer: nn.Module
    """The module: a sigmoid, a hyperbolic tangent, a leaky ReLU, or a ReLU."""

    def inverse(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return (z, σ'(z), known) for the outputs `x` = σ(z), each (value,). Outputs outside of the range count as the
        range's limit. `known` is False where σ has no inverse: at a ReLU's output 0, for which z is 0."""
        every = torch.ones_like(x, dtype=torch.bool)
        if isinstance(self.layer, nn.Sigmoid):
            inside = x.clamp(_INSIDE, 1 - _INSIDE)
            return inside.logit(), inside * (1 - inside), every
        if isinstance(self.layer, nn.Tanh):
            inside = x.clamp(_INSIDE - 1, 1 - _INSIDE)
            return inside.atanh(), 1 - inside.square(), every
        if isinstance(self.layer, nn.LeakyReLU):
            slope = torch.where(x < 0, float(self.layer.negative_slope), 1.0)
            return x / slope, slope, every
        on = x > _OFF * x.max()
        return x.clamp_min(0), on.to(x), on


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """A normalisation z = factor · x + offset of each value, without parameters."""

    factor: Tensor
    """Factor on each value (value,)."""
    offset: Tensor
    """Offset added to each scaled value (value,)."""


Link = Affine | Activation | Scaled


def links(model: nn.Module, weights: Tensors, shape: tuple[int, ...]) -> list[Link]:
    """Return the links of a model from the input to the logits; the last link is a fully connected layer.

    - `model`: a module in eval mode.
    - `weights`: its weights, name → (*shape of the parameter).
    - `shape`: shape of an example.

    Raises `Unchained` for any model but an `nn.Sequential` of fully connected layers, convolutions, sigmoids, tanh,
    leaky ReLUs, ReLUs, normalisations without parameters, and reshapes."""
    if not isinstance(model, nn.Sequential):
        raise Unchained("is no nn.Sequential, the form in which a chain of layers can be read")
    found: list[Link] = []
    for path, layer in _leaves(model, ""):
        link = _link(path, layer, weights, shape)
        if link is not None:
            found.append(link)
        with torch.no_grad():
            shape = tuple(_applied(layer, torch.zeros(1, *shape), path, weights).shape[1:])
    if not found or not isinstance(found[-1], Affine) or not found[-1].connected:
        raise Unchained("does not end in a fully connected layer")
    return found


def _leaves(model: nn.Sequential, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    for name, layer in model.named_children():
        path = f"{prefix}{name}"
        if isinstance(layer, nn.Sequential):
            yield from _leaves(layer, f"{path}.")
        else:
            yield path, layer


def _applied(layer: nn.Module, x: Tensor, path: str, weights: Tensors) -> Tensor:
    own = {name: weights[f"{path}.{name}"].float().cpu() for name, _ in layer.named_parameters()}
    out: Tensor = torch.func.functional_call(layer, own, (x,))
    return out


def _link(path: str, layer: nn.Module, weights: Tensors, shape: tuple[int, ...]) -> Link | None:
    if type(layer) in _SAME:
        return None
    if type(layer) in (nn.Sigmoid, nn.Tanh, nn.ReLU) or (type(layer) is nn.LeakyReLU and layer.negative_slope > 0):
        return Activation(layer=layer)
    if type(layer) not in (nn.Linear, nn.Conv2d):
        scaled = _scaled(layer, shape)
        if scaled is None:
            raise Unchained(f"has {type(layer).__name__}, which has no inverse here")
        return scaled
    missing = [name for name, _ in layer.named_parameters() if f"{path}.{name}" not in weights]
    if missing:
        raise Unchained(f"does not send {path}.{missing[0]}")
    size = torch.Size(shape).numel()
    taps = _taps(layer, shape)
    kernel = weights[f"{path}.weight"].double().cpu().flatten(1)
    outputs, positions = len(kernel), taps.shape[1]
    equations = outputs * positions + (size if positions == 1 else kernel.numel())
    if equations * size > _LARGEST:
        raise Unchained(f"has {size} input values at layer {path}: more equations than this attack solves")
    bias = None if layer.bias is None else weights[f"{path}.bias"].double().cpu()
    return Affine(prefix=f"{path}.", taps=taps, kernel=kernel, bias=bias, inputs=size)


def _taps(layer: nn.Module, shape: tuple[int, ...]) -> Tensor:
    index = torch.arange(1, torch.Size(shape).numel() + 1, dtype=torch.float64).reshape(shape)
    if isinstance(layer, nn.Linear):
        if len(shape) != 1:
            raise Unchained("has a fully connected layer that is used at several positions")
        return index.long()[:, None]
    assert isinstance(layer, nn.Conv2d)
    if layer.groups > 1 or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        raise Unchained("has a convolution in groups, or with a padding other than zeros")
    return F.unfold(index[None], layer.kernel_size, layer.dilation, layer.padding, layer.stride)[0].long()


def _scaled(layer: nn.Module, shape: tuple[int, ...]) -> Scaled | None:
    """Return factor and offset of a layer without parameters, by its outputs at two points; a third tests them."""
    if next(layer.parameters(), None) is not None:
        return None
    ramp = torch.linspace(0, 1, torch.Size(shape).numel(), dtype=torch.float64).square()
    probes = torch.stack([torch.zeros_like(ramp), torch.ones_like(ramp), ramp]).reshape(3, *shape)
    with torch.no_grad():
        out = layer(probes)
    if not isinstance(out, Tensor) or out.shape != probes.shape:
        return None
    zero, one, tested = out.double().flatten(1)
    factor = one - zero
    if not factor.all() or not torch.allclose(tested, factor * ramp + zero, rtol=1e-5, atol=1e-5):
        return None
    return Scaled(factor=factor, offset=zero)
