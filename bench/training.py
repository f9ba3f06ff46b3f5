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


def next_token_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss of a batch, (), under a language model: `outputs` (text, class) hold each text's mean loss
    of a next token first. `targets` (text, class) are not used."""
    return outputs[:, 0].mean()


def predicts_tokens(model: nn.Module) -> bool:
    """Return whether `model` is a language model: its outputs (text, class) then hold the mean loss of a text's next
    tokens (natural logarithm), and the share of next tokens that are predicted right."""
    return loss_of(model) is next_token_loss


def loss_of(model: nn.Module) -> BatchLoss:
    """Return the loss with which clients train the model: a function from logits and class probabilities, both
    (example, class), to the batch's loss (). The default is the mean cross entropy; `declare` stores another loss on
    the model."""
    return _of(model).loss


def mixes(model: nn.Module) -> bool:
    """Return whether clients train the model with BatchNorm in training mode, so that an example's gradient depends on
    the whole batch; stored on the model by `declare`, False by default."""
    return _of(model).batch_statistics


def declare(model: nn.Module, *, loss: BatchLoss | None, batch_statistics: bool) -> None:
    """Store on `model` how clients train the model: the loss, and the use of batch statistics. All gradients that the
    bench simulates for this model use both.

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
