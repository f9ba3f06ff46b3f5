"""Gradients of many groups of examples at once, exact and differentiable.

The federated pipeline takes each example's gradient (groups with a single example); attacks take each candidate batch's
mean gradient.  Forward hooks keep the input a and output z of every convolution and linear layer; a single
`autograd.grad` gives δ = ∂loss/∂z for all groups; each group's weight gradient is then a bilinear map of (a, δ). Models
with other parametrised layers use `torch.func`, or a loop over groups if its derivatives are not verified.  The loop
also serves models that use parameters outside of their layers' calls (`bench.uses`).
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from bench.errors import MALFORMED, NotApplicable
from bench.training import cross_entropy, loss_of, mixes, next_token_loss, predicts_tokens, soft_cross_entropy
from bench.trip import Tensors
from bench.uses import has_parameters, separate, state, trace

BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)

# Layers whose second derivatives under `vmap` equal plain autograd's (tests/test_gradients.py).
# Measured with torch 2.12: those of LayerNorm and InstanceNorm with weights are wrong, without an error
# (compare pytorch/functorch issue 534).
_VMAPPED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.GroupNorm, nn.BatchNorm1d, nn.BatchNorm2d)


def one_hot(labels: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """Return the one-hot class probabilities (..., class) of the class numbers `labels` (...,). `classes` is the number
    of classes, and `dtype` the type of the probabilities."""
    return F.one_hot(labels, classes).to(dtype)


def example_loss(model: nn.Module) -> Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]:
    """Return a function for `torch.func` that computes the loss of `model` for a single example: the cross entropy, or
    a language model's loss of next tokens. The function's arguments are weights, name → (*parameter shape), an input
    (*shape), and a label () or class probabilities (class,)."""
    of_batch = batch_loss(model)
    return lambda weights, x, y: of_batch(weights, x[None], y[None])


def batch_loss(model: nn.Module) -> Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]:
    """As `example_loss`, for the mean loss of a batch: inputs (example, *shape), and labels (example,) or class
    probabilities (example, class)."""
    of_outputs = next_token_loss if predicts_tokens(model) else F.cross_entropy

    def loss(weights: dict[str, Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
        return of_outputs(functional_call(model, weights, (inputs,)), labels)

    return loss


def group_gradients(
    model: nn.Module, weights: Tensors, inputs: Tensor, targets: Tensor, *, differentiable: bool = False
) -> dict[str, Tensor]:
    """Return the mean gradient of each group of examples at the same `weights`: name → (group, *parameter shape).

    - `weights`: the model's weights, name → (*parameter shape).
    - `inputs` (group, example, *shape): the examples, in groups of equal size.
    - `targets` (group, example, class): the examples' class probabilities.
    - `differentiable`: True keeps autograd's graph to inputs and targets.

    Raises `NotApplicable` for a model with batch statistics, which mix examples. Allowed are batch statistics that
    `bench.training.declare` states; each group is then a batch."""
    declared = mixes(model)
    if not declared and (layer := mixing_layer(model)):
        raise NotApplicable(
            f"{layer}, which mixes the examples of a batch; use GroupNorm, or eval mode with running statistics"
        )
    if declared or (differentiable and len(inputs) == 1):
        rows = _one_by_one(model, weights, inputs, targets)  # plain autograd is fastest for a single group
        return rows if differentiable else {name: value.detach() for name, value in rows.items()}
    uses = _uses(model, weights, inputs.flatten(0, 1))
    if uses.by_layers:
        gradients = _by_hooks(model, weights, inputs, targets, differentiable)
        if gradients is not None:
            return gradients
    if uses.under_vmap if differentiable else uses.own:
        with suppress(RuntimeError):  # a layer without a rule for `vmap`, such as an LSTM
            return _by_func(model, weights, inputs, targets, differentiable)
    rows = _one_by_one(model, weights, inputs, targets)
    return rows if differentiable else {name: value.detach() for name, value in rows.items()}


def batch_gradient(model: nn.Module, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Return the gradient of a batch's loss at the current weights of `model`, by plain autograd: name → (*parameter
    shape). The loss is the declared loss (`bench.training.declare`), by default the mean cross entropy.

    - `logits` (example, class): the model's outputs for the batch, with autograd's graph.
    - `targets` (example, class): class probabilities."""
    names, values = zip(*model.named_parameters(), strict=True)
    with torch.enable_grad():
        loss = loss_of(model)(logits, targets)
    return dict(zip(names, torch.autograd.grad(loss, values, materialize_grads=True), strict=True))


def mixing_layer(model: nn.Module) -> str | None:
    """Return the path, class and mode of the first layer that computes statistics over the batch (BatchNorm), as text;
    None if the model has no such layer. Such a layer mixes the batch's examples."""
    for path, layer in model.named_modules():
        # without running statistics, eval mode uses batch statistics, too
        if isinstance(layer, BATCH_NORM) and (layer.training or layer.running_mean is None):
            mode = "in training mode" if layer.training else "without running statistics"
            return f"{path or 'the model'} is {type(layer).__name__} {mode}"
    return None


def example_gradients(model: nn.Module, weights: Tensors, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Return each example's gradient, name → (example, *parameter shape).

    - `weights`: the model's weights, name → (*parameter shape).
    - `inputs` (example, *shape), `targets` (example, class): the examples and their class probabilities.

    Raises `NotApplicable` for batch statistics, which mix examples."""
    return group_gradients(model, weights, inputs[:, None], targets[:, None])


@dataclass(slots=True)
class _LayerHook:
    path: str
    layer: nn.Module
    inputs: Tensor
    outputs: Tensor
    versions: tuple[int, int]


def _hookable(model: nn.Module) -> bool:
    """Whether every parameter belongs to a single layer, and this layer is `bilinear`."""
    seen: set[int] = set()
    for layer in model.modules():
        parameters = list(layer.parameters(recurse=False))
        if not parameters:
            continue
        if not bilinear(layer) or any(id(item) in seen for item in parameters):
            return False
        seen.update(id(item) for item in parameters)
    return bool(seen)


@dataclass(frozen=True, slots=True)
class _Uses:
    """Properties of a model's use of its parameters. A field is False also if its property is not verified."""

    own: bool = False
    """Whether parameters act only through their own layers' calls."""
    by_layers: bool = False
    """Whether hooks on the layers give exact gradients, too."""
    under_vmap: bool = False
    """Whether second derivatives under `vmap` are verified, too."""


_KNOWN: WeakKeyDictionary[nn.Module, tuple[tuple[Any, ...], _Uses]] = WeakKeyDictionary()


def _uses(model: nn.Module, weights: Tensors, inputs: Tensor) -> _Uses:
    """Return how the model uses its parameters, decided again only if the model or the shape of `inputs` (example,
    *shape) changes."""
    key = (state(model), tuple(weights), inputs.shape[1:], inputs.dtype, inputs.device)
    known = _KNOWN.get(model)
    if known is None or known[0] != key:
        known = _KNOWN[model] = (key, _decide(model, weights, inputs))
    return known[1]


def _decide(model: nn.Module, weights: Tensors, inputs: Tensor) -> _Uses:
    """Decide how the model uses its `weights`. The test takes two examples, at slightly moved weights and inputs,
    because a zero can hide a use."""
    moved = {name: _moved(value) for name, value in weights.items()}
    pair = _moved(inputs[[0, -1]])
    try:
        traced = trace(model, moved, pair)
        if not traced.own:
            return _Uses()
        if not _hookable(model):
            return _Uses(own=True, under_vmap=_verified(model))
        by_layers = separate(traced) and _as_alone(model, moved, pair, traced.logits)
        return _Uses(own=True, by_layers=by_layers, under_vmap=by_layers)
    except (*MALFORMED, RuntimeError):  # a model that accepts no two examples
        return _Uses()


def _moved(value: Tensor) -> Tensor:
    draws = torch.Generator().manual_seed(0)
    noise = torch.randn(value.shape, generator=draws, dtype=torch.float64).to(value)
    still = value.detach()
    return still + 0.03 * (still.square().mean().sqrt() + 0.03) * noise


def _as_alone(model: nn.Module, weights: Tensors, pair: Tensor, logits: Tensor) -> bool:
    """Whether the gradients by hooks of the two examples in `pair`, taken together, equal autograd's gradients of each
    example alone. `logits` are the model's outputs for `pair`."""
    targets = logits.detach().roll(1, -1).softmax(-1)
    fast = _by_hooks(model, weights, pair[:, None], targets[:, None], differentiable=False)
    slow = _one_by_one(model, weights, pair[:, None], targets[:, None])
    return fast is None or _nearly_equal(fast, slow)  # None: `group_gradients` finds it again


def _nearly_equal(fast: Tensors, slow: Tensors) -> bool:
    """Whether the gradients `fast` and `slow`, name → tensor, agree up to rounding in every tensor."""
    whole = torch.stack([value.norm() for value in slow.values()]).norm()
    close = torch.finfo(whole.dtype).eps ** 0.4  # 5e-7 in double, 1.7e-3 in single precision
    return all(
        bool((fast[name] - value).norm() <= close * (value.norm() + 0.01 * whole)) for name, value in slow.items()
    )


def bilinear(layer: nn.Module) -> bool:
    """Return whether the bench can compute the weight gradient of `layer` from the layer's input and the gradient of
    its output alone, which is faster than autograd for single examples. This holds for a linear layer, and for a
    convolution without groups and with numeric zero padding."""
    if "forward" in vars(layer) or "weight" not in dict(layer.named_parameters(recurse=False)):
        return False  # a weight that is computed from other parameters
    return type(layer) is nn.Linear or (
        type(layer) is nn.Conv2d
        and layer.groups == 1
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
    )


def _by_hooks(
    model: nn.Module, weights: Tensors, inputs: Tensor, targets: Tensor, differentiable: bool
) -> dict[str, Tensor] | None:
    groups = len(inputs)
    hooked: list[_LayerHook] = []

    def keep(path: str) -> Any:
        def hook(layer: nn.Module, arguments: tuple[Tensor, ...], out: Tensor) -> None:
            hooked.append(_LayerHook(path, layer, arguments[0], out, (arguments[0]._version, out._version)))

        return hook

    handles = [
        layer.register_forward_hook(keep(path), prepend=True)
        for path, layer in model.named_modules()
        if has_parameters(layer)
    ]
    flat = inputs.flatten(0, 1)
    if not flat.requires_grad:
        flat = flat.detach().requires_grad_()  # so that every z is in the graph
    try:
        with torch.enable_grad():
            logits = functional_call(model, dict(weights), (flat.clone(),))  # a first layer may work in place
            loss = _of_groups(model, logits, targets)
    finally:
        for handle in handles:
            handle.remove()
    if any(hook.versions != (hook.inputs._version, hook.outputs._version) for hook in hooked):
        return None  # an in-place activation overwrote z: δ would not be ∂loss/∂z
    deltas: tuple[Tensor | None, ...] = torch.autograd.grad(
        loss, [hook.outputs for hook in hooked], create_graph=differentiable, allow_unused=True
    )
    gradients: dict[str, Tensor] = {}
    for hook, delta in zip(hooked, deltas, strict=True):
        if delta is None:
            continue
        a = hook.inputs if differentiable else hook.inputs.detach()
        for name, value in _layer_gradients(hook, a, delta, groups).items():
            gradients[name] = gradients[name] + value if name in gradients else value
    for name in weights.keys() - gradients.keys():  # parameters in a layer that the loss does not reach
        gradients[name] = inputs.new_zeros((groups, *weights[name].shape))
    return {name: gradients[name] for name in weights}


def _of_groups(model: nn.Module, logits: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of the groups' losses, from logits (group·example, class) and targets (group, example, class)."""
    if (loss := loss_of(model)) is cross_entropy:
        return soft_cross_entropy(logits, targets.flatten(0, 1)).sum() / targets.shape[1]
    return torch.stack([loss(z, y) for z, y in zip(logits.unflatten(0, targets.shape[:2]), targets, strict=True)]).sum()


def _layer_gradients(hook: _LayerHook, a: Tensor, delta: Tensor, groups: int) -> dict[str, Tensor]:
    prefix = f"{hook.path}." if hook.path else ""
    layer = hook.layer
    if isinstance(layer, nn.Linear):
        a = a.reshape(groups, -1, layer.in_features)
        delta = delta.reshape(groups, -1, layer.out_features)
        weight = delta.transpose(1, 2) @ a
        bias = delta.sum(1)
    else:
        assert isinstance(layer, nn.Conv2d)
        weight = conv_weight_gradient(a, delta, layer, groups)
        bias = delta.sum((-2, -1)).reshape(groups, -1, layer.out_channels).sum(1)
    gradients = {f"{prefix}weight": weight}
    if layer.bias is not None:
        gradients[f"{prefix}bias"] = bias
    return gradients


_FEW = 8  # examples below which the library's grouped convolutions are slower than unfolded columns


def pointwise(layer: nn.Module) -> bool:
    """Return whether `layer` is a 1 × 1 convolution: a linear layer at each position."""
    return (
        isinstance(layer, nn.Conv2d)
        and layer.groups == 1
        and (layer.kernel_size, layer.stride, layer.padding) == ((1, 1), (1, 1), (0, 0))
    )


def conv_weight_gradient(a: Tensor, delta: Tensor, layer: nn.Conv2d, groups: int) -> Tensor:
    """Return the weight gradient of the convolution `layer` for each group of examples: (group, output channel, input
    channel, kernel height, kernel width).

    - `a` (group·example, input channel, height, width): input of the layer.
    - `delta` (group·example, output channel, height, width): derivative of the loss by the layer's output.
    - `groups`: number of groups of examples, not of channels.

    For few examples the method is a product with unfolded columns, for many examples a grouped library convolution; for
    a 1 × 1 convolution a product over examples and positions."""
    if pointwise(layer):
        left, right = (x.reshape(groups, -1, *x.shape[1:]).transpose(1, 2).flatten(2) for x in (delta, a))
        return (left @ right.mT)[..., None, None]
    if len(a) < _FEW:
        assert not isinstance(layer.padding, str)  # `bilinear` excludes those
        columns = F.unfold(a, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
        each = delta.flatten(2) @ columns.mT  # (group·example, out, channel·k·k)
        summed = each if groups == len(a) else each.reshape(groups, -1, *each.shape[1:]).sum(1)
        return summed.reshape(groups, *layer.weight.shape)
    options = (layer.stride, layer.padding, layer.dilation, groups)
    flat: Tensor = _GroupedCorrelation.apply(  # type: ignore[no-untyped-call]
        _as_groups(a, groups), _as_groups(delta, groups), layer.kernel_size, options
    )
    return flat.reshape(groups, layer.out_channels, *flat.shape[1:])


def _as_groups(x: Tensor, groups: int) -> Tensor:
    """Rearrange `x` (group·example, channel, h, w) for `groups` groups: (example, group·channel, h, w)."""
    return x.reshape(groups, -1, *x.shape[1:]).transpose(0, 1).flatten(1, 2)


class _GroupedCorrelation(torch.autograd.Function):
    """Weight gradient W(a, δ) of a grouped convolution, bilinear in the input a and the output gradient δ. Its
    derivatives are grouped convolutions, because ⟨R, W(a, δ)⟩ = ⟨δ, conv(a, R)⟩ for all R. Autograd's own double
    backward would loop over groups."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, delta: Tensor, kernel: tuple[int, int], options: Any) -> Tensor:
        ctx.save_for_backward(a, delta)
        ctx.options = options
        weight = delta.new_empty((delta.shape[1], a.shape[1] // options[3], *kernel))
        return convolution_backward(delta, a, weight, options, (False, True))[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        a, delta = ctx.saved_tensors
        (r,) = grads
        stride, padding, dilation, groups = ctx.options
        for_a = for_delta = None
        if ctx.needs_input_grad[0]:
            for_a = _spread(delta, r, a, ctx.options)
        if ctx.needs_input_grad[1]:
            for_delta = F.conv2d(a, r, None, stride, padding, dilation, groups)
        return for_a, for_delta, None, None


def _spread(delta: Tensor, r: Tensor, a: Tensor, options: Any) -> Tensor:
    """Return the transposed convolution of `delta` with `r`, shaped like `a`; folding is faster up to 3 channels.
    `options` are stride, padding, dilation and groups."""
    stride, padding, dilation, groups = options
    channels = a.shape[1] // groups
    if channels > 3:
        return convolution_backward(delta, a, r, options, (True, False))[0]
    examples, positions = a.shape[0], delta.shape[-2] * delta.shape[-1]
    columns = r.reshape(groups, -1, channels * r.shape[-2] * r.shape[-1]).mT @ delta.reshape(
        examples, groups, -1, positions
    )
    folded: Tensor = F.fold(
        columns.flatten(0, 1), a.shape[-2:], r.shape[-2:], dilation=dilation, padding=padding, stride=stride
    )
    return folded.reshape(a.shape)


def convolution_backward(
    delta: Tensor, a: Tensor, weight: Tensor, options: Any, mask: tuple[bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    stride, padding, dilation, groups = options
    result: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
        delta, a, weight, None, stride, padding, dilation, False, (0, 0), groups, (*mask, False)
    )
    return result


def twice_under_vmap(model: nn.Module, weights: Tensors, inputs: Tensor) -> bool:
    """Return whether an attack may compute second derivatives of the model's loss for many clients at once, by
    `torch.func.vmap`. A trial with `inputs` (example, *shape) at the model's `weights`, name → (*parameter shape),
    tests whether they are correct. False may also mean that the trial cannot be made for this model."""
    return not mixes(model) and _uses(model, weights, inputs).under_vmap


def _verified(model: nn.Module) -> bool:
    layers = [layer for layer in model.modules() if has_parameters(layer)]
    return all(type(layer) in _VMAPPED and "forward" not in vars(layer) for layer in layers)


def _one_by_one(model: nn.Module, weights: Tensors, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Return each group's mean gradient by plain autograd, group by group, with the graph: slow, but correct for every
    model. `inputs` are (group, example, *shape), `targets` (group, example, class) class probabilities."""
    rows = []
    for x, y in zip(inputs, targets, strict=True):
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in weights.items()}
        with torch.enable_grad():
            loss = loss_of(model)(functional_call(model, leaves, (x.clone(),)), y)
        wanted = list(leaves.values())
        rows.append(torch.autograd.grad(loss, wanted, create_graph=True, materialize_grads=True))
    return {name: torch.stack([row[n] for row in rows]) for n, name in enumerate(weights)}


def _by_func(
    model: nn.Module, weights: Tensors, inputs: Tensor, targets: Tensor, differentiable: bool
) -> dict[str, Tensor]:
    def loss(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss_of(model)(functional_call(model, values, (x.clone(),)), y)

    values = {name: tensor.detach() for name, tensor in weights.items()}
    with torch.set_grad_enabled(differentiable or torch.is_grad_enabled()):
        gradients: dict[str, Tensor] = vmap(grad(loss), in_dims=(None, 0, 0))(values, inputs, targets)
    return gradients if differentiable else {name: value.detach() for name, value in gradients.items()}
