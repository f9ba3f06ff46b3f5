"""A copy of a user's model for attackers: without wrappers and trainer hooks, in eval mode.

A layer's weight may be computed from other parameters before each call (`weight_norm`, pruning), and is then a tensor
with a graph, which `deepcopy` refuses. The copy drops such graphs after each forward pass."""

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn

from bench.gradients import BATCH_NORM
from bench.uses import HOOKS

_WRAPPERS = {
    "GradSampleModule": "_module",
    "GradSampleModuleFastGradientClipping": "_module",
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "OptimizedModule": "_orig_mod",
}
_INSTANCE_NORM = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_TRAINERS = ("opacus",)  # packages with hooks which keep state for a later backward pass


def plain_copy(model: nn.Module, *, batch_statistics: bool = False) -> nn.Module:
    """Copy a user's model, so that attackers can run the copy without effects on the training: on the CPU, in eval
    mode, without wrappers (Opacus, data parallelism) and their hooks. Frozen parameters stay frozen.

    `batch_statistics` True: the client trained with batch statistics. In the copy, BatchNorm layers that were in
    training mode then normalise by the batch, too, and keep no running statistics. If no such layer was in training
    mode, all of them do so. The same holds for other layers that `by_mode` names."""
    plain = unwrapped(model)
    computed = {id(value): value.detach().clone() for _, _, value in _computed(plain)}
    module = _unshared(copy.deepcopy(plain, dict[int, Any](computed)).cpu().eval())
    if computed and _drop_graphs not in module._forward_hooks.values():
        module.register_forward_hook(_drop_graphs)
    for layer in module.modules():
        for name in HOOKS:
            hooks = getattr(layer, name)
            for key in [key for key, hook in hooks.items() if _origin(hook) in _TRAINERS]:
                del hooks[key]
    if batch_statistics:
        _into_training(module, {name for name, layer in _paths(plain) if layer.training})
    for parameter in module.parameters():
        parameter.grad = None
        for name in [name for name in vars(parameter) if "grad" in name or "summed" in name]:
            delattr(parameter, name)
    return module


def by_mode(layer: nn.Module) -> bool:
    """Return whether a layer may give other outputs in training mode than in eval mode, apart from random draws
    (dropout). True for BatchNorm and InstanceNorm layers, and for layers of the user's own class, which may call
    `F.batch_norm`."""
    return isinstance(layer, (*BATCH_NORM, *_INSTANCE_NORM)) or not type(layer).__module__.startswith("torch.")


def _into_training(module: nn.Module, names: set[str]) -> None:
    layers = [(name, layer) for name, layer in _paths(module) if by_mode(layer)]
    for _, layer in [each for each in layers if each[0] in names] or layers:
        layer.training = True  # `train()` would reach into the layer, to dropout
        if isinstance(layer, (*BATCH_NORM, *_INSTANCE_NORM)):
            layer.track_running_stats = False


def _paths(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield (path, layer) for every path: a layer at several places has several."""
    yield from module.named_modules(remove_duplicate=False)


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside the wrapper classes of Opacus, of PyTorch's data parallelism and of `torch.compile`."""
    while (name := _WRAPPERS.get(type(model).__name__)) and isinstance(inner := getattr(model, name), nn.Module):
        model = inner
    return model


def _unshared(module: nn.Module) -> nn.Module:
    """Replace a layer at several places of `module` by copies with the same parameters and buffers, in place.
    `torch.func.functional_call` (2.12 to 2.15) leaves the given weights in a layer that is registered twice."""
    seen: set[nn.Module] = set()
    for layer in list(module.modules()):
        for name, inner in layer._modules.items():
            if inner is not None and inner in seen:
                tensors = {id(value): value for value in (*inner.parameters(), *inner.buffers())}
                layer._modules[name] = copy.deepcopy(inner, dict[int, Any](tensors))
            elif inner is not None:
                seen.add(inner)
    return module


def _computed(module: nn.Module) -> list[tuple[nn.Module, str, Tensor]]:
    """List the tensors which are plain attributes of a layer, neither parameters nor buffers."""
    return [
        (layer, name, value)
        for layer in module.modules()
        for name, value in vars(layer).items()
        if isinstance(value, Tensor)
    ]


def _drop_graphs(module: nn.Module, arguments: Any, out: Any) -> None:
    for layer, name, value in _computed(module):
        setattr(layer, name, value.detach())


def _origin(hook: Any) -> str:
    while isinstance(hook, partial):
        hook = hook.func
    owner = getattr(hook, "__self__", None)
    module = type(owner).__module__ if owner is not None else getattr(hook, "__module__", None) or ""
    return module.partition(".")[0]
