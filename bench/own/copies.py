"""A copy of a user's model for attackers: without wrappers and trainer hooks, in eval mode.

A layer's weight may be computed from other parameters before each call (`weight_norm`, pruning), and is then a tensor
with a graph, which `deepcopy` refuses. The copy drops such graphs after each forward pass."""

import copy
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
_TRAINERS = ("opacus",)  # packages with hooks which keep state for a later backward pass


def plain_copy(model: nn.Module, *, batch_statistics: bool = False) -> nn.Module:
    """Copy a user's model for attackers: on the CPU, in eval mode, without wrappers and hooks; frozen parameters stay
    frozen. `batch_statistics` True leaves BatchNorm in training mode, without updates of running statistics."""
    plain = unwrapped(model)
    computed = {id(value): value.detach().clone() for _, _, value in _computed(plain)}
    module = copy.deepcopy(plain, dict[int, Any](computed)).cpu().eval()
    if computed and _drop_graphs not in module._forward_hooks.values():
        module.register_forward_hook(_drop_graphs)
    for layer in module.modules():
        for name in HOOKS:
            hooks = getattr(layer, name)
            for key in [key for key, hook in hooks.items() if _origin(hook) in _TRAINERS]:
                del hooks[key]
    for layer in module.modules() if batch_statistics else ():
        if isinstance(layer, BATCH_NORM):
            layer.train()
            layer.track_running_stats = False
    for parameter in module.parameters():
        parameter.grad = None
        for name in [name for name in vars(parameter) if "grad" in name or "summed" in name]:
            delattr(parameter, name)
    return module


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside the wrapper classes of Opacus, of PyTorch's data parallelism and of `torch.compile`."""
    while (name := _WRAPPERS.get(type(model).__name__)) and isinstance(inner := getattr(model, name), nn.Module):
        model = inner
    return model


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
