"""A copy of a user's model for attackers: without wrappers and trainer hooks, in eval mode."""

import copy
from functools import partial
from typing import Any

from torch import nn

_WRAPPERS = {
    "GradSampleModule": "_module",
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "OptimizedModule": "_orig_mod",
}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_TRAINERS = ("opacus",)  # packages with hooks which keep state for a later backward pass


def plain_copy(model: nn.Module) -> nn.Module:
    """Copy a user's model to the CPU in eval mode, without wrappers and hooks; frozen parameters stay frozen."""
    module = copy.deepcopy(unwrapped(model)).cpu().eval()
    for layer in module.modules():
        for name in _HOOKS:
            hooks = getattr(layer, name)
            for key in [key for key, hook in hooks.items() if _origin(hook) in _TRAINERS]:
                del hooks[key]
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


def _origin(hook: Any) -> str:
    while isinstance(hook, partial):
        hook = hook.func
    owner = getattr(hook, "__self__", None)
    module = type(owner).__module__ if owner is not None else getattr(hook, "__module__", None) or ""
    return module.partition(".")[0]
