"""Uses of a model's parameters, read from autograd's graph of a forward pass.

Gradients by layers need two properties.  A parameter acts only through its own layer's call: during such calls the
parameters are constants, so that a path from the logits to a parameter is another use.  An example stays in its rows of
axis 0: the derivatives between two examples are exactly zero.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bench.errors import NotApplicable
from bench.trip import Tensors

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_PLAIN = frozenset((bool, int, float, str))


@dataclass(slots=True)
class Trace:
    """Values recorded in a model's forward pass on two examples: each layer's input and output, and the logits.
    `separate` and the field `own` tell from the values if per-example gradients can be computed layer by layer."""

    inputs: Tensor
    """The examples, (2, *shape)."""
    logits: Tensor = field(default_factory=lambda: torch.zeros(()))
    """Outputs of the model for the two examples."""
    calls: list[tuple[Any, Any]] = field(default_factory=list)
    """(first argument, output) of each call of a layer with parameters."""
    own: bool = False
    """True if each parameter acts on the logits only through the call of its own layer."""


def trace(model: nn.Module, weights: Tensors, inputs: Tensor) -> Trace:
    """Run a forward pass of `model` on two examples, `inputs` (2, *shape), at `weights`, name → (*shape). Return the
    inputs and outputs of all layers, to test if per-example gradients can be computed layer by layer. Raises
    `NotApplicable` if the model uses a parameter that `torch.func.functional_call` cannot replace."""
    result = Trace(inputs.detach().clone().requires_grad_())
    leaves = {name: value.detach().clone().requires_grad_() for name, value in weights.items()}
    handles = [handle for layer in model.modules() if has_parameters(layer) for handle in _watched(layer, result.calls)]
    try:
        with torch.enable_grad():
            result.logits = functional_call(model, leaves, (result.inputs.clone(),))
    finally:
        for handle in handles:
            handle.remove()
    fixed = {name: value for name, value in model.named_parameters() if name in weights}
    if name := reached(result.logits, fixed):
        raise NotApplicable(bypass(name))
    result.own = reached(result.logits, leaves) is None
    return result


def bypass(name: str) -> str:
    """Return the error text for a model that still uses its original parameter `name` in a forward pass with replaced
    weights."""
    return f"the model uses its parameter {name!r} through a closure, so a copy does not replace it; read it from self"


def has_parameters(layer: nn.Module) -> bool:
    """Return whether the layer itself, without its sublayers, has parameters."""
    return next(layer.parameters(recurse=False), None) is not None


def bare(layer: nn.Module) -> bool:
    """Return whether a call of the layer runs only the method `forward` of its class: no hooks, and no replaced
    `forward`. Such a layer can be computed for many clients at a time by a formula."""
    return "forward" not in vars(layer) and not any(getattr(layer, name) for name in HOOKS)


def reached(outputs: Tensor, tensors: Tensors) -> str | None:
    """Return the name of a tensor in `tensors` (name → tensor) on which `outputs` depend, by the autograd graph; None
    if `outputs` depend on none. Used to find parameters that a copy of the model cannot replace."""
    return nearest(outputs, tensors)


def nearest(outputs: Tensor, tensors: Tensors) -> str | None:
    """Return the name of the tensor in `tensors` (name → tensor) that acts last on `outputs`, such as the last layer's
    bias on logits: the tensor with the fewest operations up to `outputs` in the autograd graph. None if `outputs`
    depend on none."""
    names = {id(value): name for name, value in tensors.items()}
    return next((names[id(leaf)] for leaf in _leaves(outputs) if id(leaf) in names), None)


def separate(traced: Trace) -> bool:
    """Return whether the model treats examples independently, which per-example gradients by layers require (batch
    statistics, for example, mix examples). In the forward pass `traced` on two examples, an example's part of axis 0 in
    the logits and in every layer's input and output must depend on this example only."""
    calls = [call for call in traced.calls if all(isinstance(value, Tensor) for value in call)]
    batched = all(len(a) % 2 == 0 and len(z) % 2 == 0 and z.requires_grad for a, z in calls)
    if len(calls) < len(traced.calls) or not batched or len(traced.logits) != 2:
        return False
    inputs, outputs = [a for a, _ in calls], [z for _, z in calls]
    return all(
        not _touches(inputs, [traced.inputs], example) and not _touches([traced.logits], outputs, example)
        for example in (0, 1)
    )


def state(model: nn.Module) -> list[Hashable]:
    """Return a fingerprint of how `model` computes: layers, modes, hooks, and plain attributes of layers outside of
    torch, as a list. If two calls give equal lists, results about the model from the first call (cached per model) are
    still valid. The weights are not included."""
    parts: list[Hashable] = []
    for layer in model.modules():
        own = vars(layer)
        hooks = [key for name in HOOKS if own[name] for key in own[name]]  # torch never uses a key again
        parts += (ref(layer), layer.training, own.get("forward"), *hooks)
        if not type(layer).__module__.startswith("torch."):
            parts += [value for value in own.values() if type(value) in _PLAIN]
    return parts


def _watched(layer: nn.Module, calls: list[tuple[Any, Any]]) -> Iterator[Any]:
    """Make a layer's parameters constants during its call, and add the call's first argument and output to `calls`. The
    call lasts from the layer's last hook before `forward` to its first hook behind."""
    live: list[dict[str, Any]] = []  # a layer may call itself

    def enter(layer: nn.Module, arguments: tuple[Any, ...]) -> None:
        live.append(dict(layer._parameters))
        layer._parameters.update({name: value if value is None else value.detach() for name, value in live[-1].items()})

    def leave(layer: nn.Module, arguments: tuple[Any, ...], out: Any) -> None:
        layer._parameters.update(live.pop())
        calls.append((arguments[0] if arguments else None, out))

    yield layer.register_forward_pre_hook(enter)
    yield layer.register_forward_hook(leave, prepend=True, always_call=True)


def _leaves(outputs: Tensor) -> Iterator[Tensor]:
    """Yield the leaves of the autograd graph behind `outputs`, nearest first."""
    waiting, seen = deque[Any]([outputs.grad_fn]), set[Any]()
    while waiting:
        node = waiting.popleft()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == "torch::autograd::AccumulateGrad":
            yield node.variable
        waiting += [behind for behind, _ in node.next_functions]


def _touches(outputs: Iterable[Tensor], inputs: list[Tensor], example: int) -> bool:
    """Whether the rows of the example number `example` in any of `outputs` depend on the other example's rows in any of
    `inputs`."""
    draws = torch.Generator().manual_seed(example)
    sums = []
    for output in outputs:
        rows = _rows(output, example)
        sums.append((rows * torch.rand(rows.shape, generator=draws, dtype=torch.float64).to(rows)).sum())
    slopes = torch.autograd.grad(sums, inputs, retain_graph=True, allow_unused=True)
    return any(slope is not None and bool(_rows(slope, 1 - example).any()) for slope in slopes)


def _rows(value: Tensor, example: int) -> Tensor:
    """Return the rows of `value` for the example number `example` (0 or 1) of two: an equal part of axis 0."""
    return value.chunk(2)[example]
