"""Many clients' networks as a single tensor program: gradients for every client at its weights, together.

Clients' weights differ after the first local step, so every product is batched over clients.  A convolution becomes a
single grouped library convolution, or, with few input channels, a product with unfolded columns; a linear layer becomes
a batched product.  Activations have the layout (example, client, …), which grouped convolutions read without a copy. As
in `bench.gradients`, a single `autograd.grad` gives δ = ∂loss/∂z at the output z of every layer with weights. Gradients
are bilinear maps of a layer's input a and δ, which gives a client's batch mean, its example gradients, or the norms and
weighted sums of example gradients without forming them.

A stack is an `nn.Sequential` of convolutions, linear layers, pooling and parameter-free layers; `torch.func` serves
other models (`bench.federated.clients`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.defenses.base import Tensors
from bench.gradients import bilinear, convolution_backward, pointwise
from bench.models.base import Normalise
from bench.uses import bare, has_parameters

_FEW_CHANNELS = 3  # input channels up to which unfolded columns beat a grouped convolution (BENCHMARKS.md)
# Layers without parameters which treat each example separately and accept any leading axes.
_PLAIN = (nn.ReLU, nn.ReLU6, nn.Sigmoid, nn.Tanh, nn.ELU, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.Identity, Normalise)


@dataclass(frozen=True, slots=True)
class _Layer:
    weight: str
    bias: str | None
    module: nn.Conv2d | nn.Linear


@dataclass(frozen=True, slots=True)
class Stack:
    """A model as a sequence of layers, which computes the gradients of many clients in a single program."""

    parts: tuple["_Layer | Callable[[Tensor], Tensor]", ...]
    """Layers with weights, and functions for the layers without weights, in order."""

    def gradients(self, weights: Tensors, inputs: Tensor, labels: Tensor) -> "StackGradients":
        """Return the gradients for every client at its weights.

        - `weights`: name → (client, *shape).
        - `inputs`: (client, example, *shape).
        - `labels`: (client, example), or class probabilities (client, example, class)."""
        x = inputs.transpose(0, 1)
        seen: list[tuple[_Layer, Tensor]] = []
        outputs: list[Tensor] = []
        with torch.enable_grad():
            for part in self.parts:
                if not isinstance(part, _Layer):
                    x = part(x)
                    continue
                z, read = _forward(part, x, weights)
                if not z.requires_grad:  # the first layer with weights: earlier tensors need no gradient
                    z.requires_grad_()
                seen.append((part, read.detach()))
                outputs.append(z)
                x = z
            targets = labels.transpose(0, 1).flatten(0, 1)
            loss = F.cross_entropy(x.flatten(0, 1), targets, reduction="sum")
        deltas = torch.autograd.grad(loss, outputs)
        return StackGradients(
            terms=tuple(_Term(layer, read, delta) for (layer, read), delta in zip(seen, deltas, strict=True))
        )


@dataclass(frozen=True, slots=True)
class _Term:
    """Factors of the gradient of a `layer`: its input `read` (or the input's unfolded columns), and `delta` =
    ∂loss/∂output. Both are (example, client, …)."""

    layer: _Layer
    read: Tensor
    delta: Tensor


class StackGradients:
    """Gradients of a local step for many clients, in several forms: mean, per example, norms, and weighted mean. Each
    form is computed when called; names are in model order."""

    def __init__(self, terms: Sequence[_Term]) -> None:
        self._terms = terms
        self._formed: dict[str, Tensor] = {}

    def mean(self) -> dict[str, Tensor]:
        """Return the mean gradient over each client's batch, name → (client, *shape)."""
        return self._collected(lambda term, _: _summed(term) / len(term.delta), lambda term, _: _bias(term).mean(0))

    def each(self) -> dict[str, Tensor]:
        """Return example gradients, name → (client, example, *shape)."""
        return self._collected(
            lambda term, _: self._each(term).transpose(0, 1), lambda term, _: _bias(term).transpose(0, 1)
        )

    def norms(self) -> dict[str, Tensor]:
        """Return the Euclidean norm of each example gradient, per tensor, name → (client, example)."""

        def weight(term: _Term, _: str) -> Tensor:
            if isinstance(term.layer.module, nn.Linear):  # ‖δ aᵀ‖ = ‖δ‖‖a‖
                size: Tensor = term.delta.norm(dim=-1) * term.read.norm(dim=-1)
            elif _by_positions(term):
                delta, a = (each.flatten(3) for each in (term.delta, term.read))
                gram: Tensor = (delta.mT @ delta) * (a.mT @ a)  # (example, client, position, position)
                size = gram.sum((-2, -1)).clamp_min(0).sqrt()
            else:
                size = self._each(term).flatten(2).norm(dim=-1)
            return size.T

        return self._collected(weight, lambda term, _: _bias(term).norm(dim=-1).T)

    def weighted(self, factors: Tensors) -> dict[str, Tensor]:
        """Return each client's weighted mean over its example gradients, name → (client, *shape). `factors` are the
        weights of the examples in each tensor, name → (client, example); the sum is divided by the number of examples.
        """

        def weight(term: _Term, name: str) -> Tensor:
            share = factors[name].T / len(term.delta)
            if isinstance(term.layer.module, nn.Linear):
                return torch.einsum("bko,bkf->kof", term.delta * share[..., None], term.read)
            if _by_positions(term):
                return _summed(replace(term, delta=term.delta * share[..., None, None, None]))
            flat = self._each(term).flatten(2).transpose(0, 1)  # (client, example, numbers)
            summed = share.T[:, None] @ flat
            return summed.reshape(-1, *term.layer.module.weight.shape)

        return self._collected(
            weight, lambda term, name: (_bias(term) * (factors[name].T / len(term.delta))[..., None]).sum(0)
        )

    def _collected(
        self, weight: Callable[[_Term, str], Tensor], bias: Callable[[_Term, str], Tensor]
    ) -> dict[str, Tensor]:
        result: dict[str, Tensor] = {}
        for term in self._terms:
            result[term.layer.weight] = weight(term, term.layer.weight)
            if term.layer.bias is not None:
                result[term.layer.bias] = bias(term, term.layer.bias)
        return result

    def _each(self, term: _Term) -> Tensor:
        name = term.layer.weight
        if name not in self._formed:
            self._formed[name] = _of_each(term)
        return self._formed[name]


def stack(model: nn.Module) -> Stack | None:
    """Return the model as a `Stack`, which computes the gradients of many clients in a single program. The result is
    None for a model that is no plain `nn.Sequential`, or has unsupported layers, hooks, shared weights or no weights.
    """
    if not isinstance(model, nn.Sequential) or type(model).forward is not nn.Sequential.forward:
        return None
    if has_parameters(model) or not all(bare(module) for module in model.modules()):
        return None
    parts: list[_Layer | Callable[[Tensor], Tensor]] = []
    owners: set[int] = set()
    for path, module in model.named_modules(remove_duplicate=False):
        if not path or "." in path:
            continue  # the model itself, and modules inside its parts
        part = _part(path, module)
        if part is None or any(id(item) in owners for item in module.parameters()):
            return None  # tied weights have a single gradient
        owners.update(id(item) for item in module.parameters())
        parts.append(part)
    if not any(isinstance(part, _Layer) for part in parts):
        return None
    return Stack(tuple(_pool_first(parts)))


def _part(path: str, module: nn.Module) -> "_Layer | Callable[[Tensor], Tensor] | None":
    if isinstance(module, nn.Linear | nn.Conv2d) and bilinear(module):  # no subclass: `forward` may differ
        bias = None if module.bias is None else f"{path}.bias"
        return _Layer(f"{path}.weight", bias, module)
    if type(module) is nn.MaxPool2d:
        return _max_pool(module)
    if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        return nn.Flatten(2)
    if type(module) is nn.Unflatten and module.dim == 1:
        return nn.Unflatten(2, module.unflattened_size)
    if type(module) is nn.AdaptiveAvgPool2d:
        return lambda x: module(x.flatten(0, 1)).unflatten(0, x.shape[:2])
    if type(module) in _PLAIN:
        return _out_of_place(module)
    if type(module) is nn.Dropout and not module.training:
        return nn.Identity()
    return None


def _out_of_place(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return the activation `module` in a form that keeps its input, because the gradient needs the input."""
    if getattr(module, "inplace", False):
        return lambda x: module(x.clone())
    return module


def _pool_first(parts: Sequence[Any]) -> list[Any]:
    """Move ReLU behind max-pooling: equal values and derivatives, on fewer numbers (a quarter for 2 × 2 pooling)."""
    order = list(parts)
    for n in range(len(order) - 1):
        if type(order[n]) is nn.ReLU and isinstance(order[n + 1], _MaxPool):
            order[n], order[n + 1] = order[n + 1], order[n]
    return order


# --- forward -------------------------------------------------------------------------------------------


def _forward(layer: _Layer, x: Tensor, weights: Tensors) -> tuple[Tensor, Tensor]:
    """Return a layer's output, and the input in the form that the weight's gradient needs: `x` itself, or its unfolded
    columns (example, client, channel·k·k, position) for a convolution with few channels. Input `x` and output are
    (example, client, feature) for a linear layer, (example, client, channel, h, w) for a convolution. `weights` are
    name → (client, *shape)."""
    weight = weights[layer.weight]
    bias = None if layer.bias is None else weights[layer.bias]
    module = layer.module
    if isinstance(module, nn.Linear):
        z = torch.einsum("bkf,kof->bko", x, weight)
        return (z if bias is None else z + bias), x
    examples, clients, channels = x.shape[:3]
    if channels <= _FEW_CHANNELS or on_gpu(x):
        columns = _columns(x.flatten(0, 1), module).unflatten(0, (examples, clients))
        flat = columns.mT @ weight.flatten(2).mT  # (example, client, position, out): channels last
        if bias is not None:
            flat = flat + bias[:, None]
        return flat.unflatten(2, _out_size(x.shape[-2:], module)).movedim(-1, 2), columns
    z = F.conv2d(
        x.flatten(1, 2),
        weight.flatten(0, 1),
        None if bias is None else bias.flatten(),
        module.stride,
        _padding(module),
        module.dilation,
        clients,
    )
    return z.reshape(examples, clients, -1, *z.shape[2:]), x


def on_gpu(x: Tensor) -> bool:
    """Return whether `x` lies on a GPU, where the stack computes convolutions as matrix products, because convolutions
    with a group for each client are slow there."""
    return x.device.type == "cuda"


def _columns(x: Tensor, module: nn.Conv2d) -> Tensor:
    """Return the inputs `x`, (row, channel, h, w), of each output position: (row, channel·k·k, position)."""
    if on_gpu(x):
        columns: Tensor = _Windows.apply(x, module)  # type: ignore[no-untyped-call]
        return columns
    return F.unfold(x, module.kernel_size, module.dilation, _padding(module), module.stride)


def _out_size(size: Sequence[int], module: nn.Conv2d) -> tuple[int, int]:
    def out(n: int) -> int:
        reach = module.dilation[n] * (module.kernel_size[n] - 1) + 1
        return (size[n] + 2 * int(module.padding[n]) - reach) // module.stride[n] + 1

    return out(0), out(1)


class _Windows(torch.autograd.Function):
    """`F.unfold` by k² strided copies for all rows together: on a GPU PyTorch launches a kernel for each row. `F.fold`
    takes all rows in a kernel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, module: nn.Conv2d) -> Tensor:
        ctx.shape, ctx.module = x.shape, module
        padded = _padded(x, module)
        windows = torch.stack([padded[at] for at in _offsets(x.shape, module)], 2)
        return windows.flatten(3).flatten(1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        module: nn.Conv2d = ctx.module
        options = module.kernel_size, module.dilation, _padding(module), module.stride
        return F.fold(grads[0], ctx.shape[-2:], *options), None


def _padding(module: nn.Conv2d) -> tuple[int, ...]:
    assert not isinstance(module.padding, str)  # `bilinear` excludes string paddings
    return module.padding


def _padded(x: Tensor, module: nn.Conv2d) -> Tensor:
    top, left = _padding(module)
    return F.pad(x, (left, left, top, top))


def _offsets(shape: Sequence[int], module: nn.Conv2d) -> list[tuple[Any, ...]]:
    """Return for each weight of a kernel the places of its inputs in a padded input with `shape` before padding."""
    size = _out_size(shape[-2:], module)

    def places(axis: int, number: int) -> slice:
        start = number * module.dilation[axis]
        return slice(start, start + module.stride[axis] * (size[axis] - 1) + 1, module.stride[axis])

    return [(..., places(0, i), places(1, j)) for i, j in product(*(range(k) for k in module.kernel_size))]


# --- gradients of one layer's weight ---------------------------------------------------------------------


def _by_positions(term: _Term) -> bool:
    """Return whether the norm of an example gradient Σ δ_p a_pᵀ is faster as Σ (δ_p·δ_q)(a_p·a_q), without the gradient
    (Goodfellow 2015; Rochette et al. 2020 for convolutions): a 1 × 1 convolution with few positions p."""
    module = term.layer.module
    return pointwise(module) and term.read.dim() == 5 and term.delta[0, 0, 0].numel() ** 2 < module.weight.numel()


def _summed(term: _Term) -> Tensor:
    """Return the gradient of the weight in `term`, summed over each client's examples: (client, *shape)."""
    module, a, delta = term.layer.module, term.read, term.delta
    if isinstance(module, nn.Linear):
        return torch.einsum("bko,bkf->kof", delta, a)
    if a.dim() == 4:  # columns
        return _of_each(term).sum(0)
    if pointwise(module):
        left, right = (x.permute(1, 2, 0, 3, 4).flatten(2) for x in (delta, a))  # (client, channel, example·position)
        product: Tensor = left @ right.mT
        return product[..., None, None]
    clients = a.shape[1]
    summed: Tensor = _grouped(module, a.flatten(1, 2), delta.flatten(1, 2), clients).unflatten(0, (clients, -1))
    return summed


def _of_each(term: _Term) -> Tensor:
    """Return the example gradients of the weight in `term`: (example, client, *shape)."""
    module, a, delta = term.layer.module, term.read, term.delta
    examples, clients = delta.shape[:2]
    if isinstance(module, nn.Linear):
        return delta[..., None] * a[:, :, None]
    if a.dim() == 4:  # columns
        by_position = delta.movedim(2, -1).flatten(2, 3)  # (example, client, position, out)
        flat: Tensor = (a @ by_position).mT
        return flat.reshape(*flat.shape[:-1], *module.weight.shape[1:])
    if pointwise(module):
        outer: Tensor = delta.flatten(3) @ a.flatten(3).mT
        return outer[..., None, None]
    groups = examples * clients
    grouped = _grouped(module, a.flatten(0, 2)[None], delta.flatten(0, 2)[None], groups)
    each: Tensor = grouped.unflatten(0, (examples, clients, -1))
    return each


def _grouped(module: nn.Conv2d, a: Tensor, delta: Tensor, groups: int) -> Tensor:
    """Return the weight gradients of a convolution, summed over examples: (group·out, channel, k, k). `module` is the
    convolution. `a` (example, group·channel, h, w) is its input for `groups` groups, `delta` ∂loss/∂output with the
    same axes."""
    weight = delta.new_empty((delta.shape[1], a.shape[1] // groups, *module.kernel_size))
    options = (module.stride, module.padding, module.dilation, groups)
    return convolution_backward(delta, a, weight, options, (False, True))[1]


def _bias(term: _Term) -> Tensor:
    return term.delta if isinstance(term.layer.module, nn.Linear) else term.delta.sum((-2, -1))


# --- pooling -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _MaxPool:
    """Max-pooling with channels last in memory: PyTorch is then ten times faster, even with the copies. `options` are
    the arguments of PyTorch's max-pooling."""

    options: tuple[Any, ...]

    def __call__(self, x: Tensor) -> Tensor:
        flat: Tensor = _ChannelsLastPool.apply(x.flatten(0, 1), self.options)  # type: ignore[no-untyped-call]
        pooled: Tensor = flat.unflatten(0, x.shape[:2])
        return pooled


def _max_pool(module: nn.MaxPool2d) -> _MaxPool | None:
    if module.return_indices:
        return None
    shape = (module.kernel_size, module.stride, module.padding, module.dilation)
    pairs = tuple(list(value) if isinstance(value, tuple) else [value, value] for value in shape)
    return _MaxPool((*pairs, module.ceil_mode))


class _ChannelsLastPool(torch.autograd.Function):
    """Max-pooling with channels last in memory, since PyTorch's backward would copy twice for channels first."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, options: tuple[Any, ...]) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        pooled, indices = torch.ops.aten.max_pool2d_with_indices(x, *options)
        ctx.save_for_backward(x, indices)
        ctx.options = options
        result: Tensor = pooled.contiguous()
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        x, indices = ctx.saved_tensors
        g = grads[0].contiguous(memory_format=torch.channels_last)
        return torch.ops.aten.max_pool2d_with_indices_backward(g, x, *ctx.options, indices), None
