"""An attacker's copy of a model whose ReLUs are softened."""

import copy

from torch import nn


def has_relu(model: nn.Module) -> bool:
    return any(isinstance(layer, nn.ReLU) for layer in model.modules())


def softened(model: nn.Module, sharpness: float) -> nn.Module:
    """A copy in which each ReLU is log(1 + exp(s z)) / s, s = `sharpness`.

    A ReLU's gradient is constant between kinks, so that the distance has almost no curvature there, and jumps.
    """
    copied = copy.deepcopy(model)
    for parent in list(copied.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.ReLU):
                setattr(parent, name, nn.Softplus(beta=sharpness, threshold=40))
    return copied
