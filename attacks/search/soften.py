"""Copies of a model with softened ReLUs."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_FUNCTIONS = frozenset((F.relu, F.relu_, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_))
_THRESHOLD = 40  # above this value of s z, softplus is z


def has_relu(model: nn.Module, inputs: Tensor) -> bool:
    """Return whether `model` has a ReLU, so that a search needs stages with smooth functions in its place (`softened`):
    a module, or a function that a pass over `inputs` (example, *shape) calls."""
    if any(isinstance(layer, nn.ReLU) for layer in model.modules()):
        return True
    seen, copied = _Functions(None), copy.deepcopy(model).eval()  # a pass in training mode changes running statistics
    with torch.no_grad(), seen:
        copied(inputs)
    return seen.called


def softened(model: nn.Module, sharpness: float) -> nn.Module:
    """Return a copy of the model with the smooth function log(1 + exp(s z)) / s in place of each ReLU, whether module
    or function. s is `sharpness`; a larger value is closer to a ReLU.

    A ReLU's derivative is constant between kinks. The matching distance of the original model therefore has almost no
    curvature between kinks, and jumps at kinks, which misleads a solver."""
    copied = copy.deepcopy(model)
    for parent in list(copied.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.ReLU):
                setattr(parent, name, nn.Softplus(beta=sharpness, threshold=_THRESHOLD))
    plain = type(copied)

    def forward(self: nn.Module, *args: Any, **options: Any) -> Any:
        with _Functions(sharpness):
            return plain.forward(self, *args, **options)

    copied.__class__ = type(plain.__name__, (plain,), {"forward": forward})
    return copied


class _Functions(TorchFunctionMode):
    """Inside a `with` statement: softplus in place of each ReLU function; with `sharpness` None, ReLUs stay, and
    `called` tells of them."""

    def __init__(self, sharpness: float | None) -> None:
        super().__init__()
        self._sharpness = sharpness
        self.called = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in _FUNCTIONS:
            self.called = True
            if self._sharpness is not None:
                return F.softplus(args[0], self._sharpness, _THRESHOLD)
        return func(*args, **(kwargs or {}))
