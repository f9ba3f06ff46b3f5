"""A model's loss and use of batch statistics in training, stored on the model: all simulated gradients use them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

BatchLoss = Callable[[Tensor, Tensor], Tensor]
_NAME = "bench_training"


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return each example's cross entropy, (example,), of `logits` against the class probabilities `targets`, both
    (example, class)."""
    return -(targets * F.log_softmax(logits, dim=-1)).sum(-1)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy of a batch, (), of `logits` against the class probabilities `targets`, both
    (example, class)."""
    return soft_cross_entropy(logits, targets).mean()


def loss_of(model: nn.Module) -> BatchLoss:
    """Return the loss with which the model is trained: a function from logits and class probabilities, both (example,
    class), to the batch's loss (). Without a call of `declare`, this is `cross_entropy`."""
    return _of(model).loss


def mixes(model: nn.Module) -> bool:
    """Return whether the model is trained with batch statistics (BatchNorm in training mode), as `declare` states."""
    return _of(model).batch_statistics


def declare(model: nn.Module, *, loss: BatchLoss | None, batch_statistics: bool) -> None:
    """Store on `model` how the model is trained, for all simulated gradients: the loss, and the use of batch
    statistics.

    - `loss`: function from logits and class probabilities to the batch's loss; None: mean cross entropy.
    - `batch_statistics`: True if BatchNorm is in training mode."""
    object.__setattr__(model, _NAME, _Training(loss or cross_entropy, batch_statistics))


@dataclass(frozen=True, slots=True)
class _Training:
    loss: BatchLoss = cross_entropy
    batch_statistics: bool = False


def _of(model: nn.Module) -> _Training:
    declared: _Training = vars(model).get(_NAME, _Training())
    return declared
