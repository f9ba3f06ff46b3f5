"""A model's training, its loss and batch statistics, kept with the model: every simulation of its gradients follows."""

from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

BatchLoss = Callable[[Tensor, Tensor], Tensor]
_NAME = "bench_training"


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
    return _of(model).loss


def mixes(model: nn.Module) -> bool:
    """Return whether the model's training normalises by the batch (BatchNorm in training mode), as declared with
    `declare`."""
    return _of(model).batch_statistics


def declare(model: nn.Module, *, loss: BatchLoss | None, batch_statistics: bool) -> None:
    """Note with `model` how it is trained, so that all simulated gradients follow: its `loss` (None: mean cross
    entropy), and whether the training normalises by the batch (`batch_statistics`)."""
    object.__setattr__(model, _NAME, _Training(loss or cross_entropy, batch_statistics))


@dataclass(frozen=True, slots=True)
class _Training:
    loss: BatchLoss = cross_entropy
    batch_statistics: bool = False


def _of(model: nn.Module) -> _Training:
    declared: _Training = vars(model).get(_NAME, _Training())
    return declared
