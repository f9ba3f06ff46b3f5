"""Copies of a model with softened ReLUs."""

import copy

from torch import nn


def has_relu(model: nn.Module) -> bool:
    """Return whether `model` contains a ReLU module."""
    return any(isinstance(layer, nn.ReLU) for layer in model.modules())


def softened(model: nn.Module, sharpness: float) -> nn.Module:
    """Return a copy of the model with the smooth function log(1 + exp(s z)) / s in place of each ReLU. s is
    `sharpness`; a larger value is closer to a ReLU.

    A ReLU's derivative is constant between kinks. The matching distance of the original model therefore has almost no
    curvature between kinks, and jumps at kinks, which misleads a solver."""
    copied = copy.deepcopy(model)
    for parent in list(copied.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.ReLU):
                setattr(parent, name, nn.Softplus(beta=sharpness, threshold=40))
    return copied
