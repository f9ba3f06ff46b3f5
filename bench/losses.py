"""The loss of a model's training, kept with the model: every simulation of its gradients follows."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

BatchLoss = Callable[[Tensor, Tensor], Tensor]
_NAME = "bench_loss"


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return each example's cross entropy (example,) of `logits` (example, class) against `targets` (example, class).
    `targets` are class probabilities."""
    return -(targets * F.log_softmax(logits, dim=-1)).sum(-1)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy of a batch: `logits` and class probabilities `targets`, both (example, class)."""
    return soft_cross_entropy(logits, targets).mean()


def loss_of(model: nn.Module) -> BatchLoss:
    """Return the loss of the model's training, a function from logits and class probabilities, both (example, class),
    to a batch's loss (); without a declaration `cross_entropy`."""
    declared: BatchLoss = vars(model).get(_NAME, cross_entropy)
    return declared


def declare_loss(model: nn.Module, loss: BatchLoss | None) -> None:
    """Keep `loss` as the loss of the model's training; None declares nothing."""
    if loss is not None:
        object.__setattr__(model, _NAME, loss)
