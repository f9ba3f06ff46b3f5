"""A user's loss as a function of logits and class probabilities."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.errors import BenchError
from bench.own.files import Loss
from bench.sanitize import first_line
from bench.training import BatchLoss

Chosen = Callable[..., Tensor]


def declared(loss: Chosen | None, classes: int, *, one_logit: bool = False) -> BatchLoss | None:
    """Return the user's `loss` as a function that attacks can use, from logits and class probabilities, both (example,
    class), to a number. None stands for the mean cross entropy.

    - `classes`: number of classes.
    - `one_logit`: True for a model with a single logit, wrapped by `two_logits`.

    `nn.CrossEntropyLoss`, `nn.NLLLoss`, `nn.BCEWithLogitsLoss` and `nn.MSELoss` are taken with their options; the last
    two get one-hot labels. Any other callable is called with logits and class probabilities. Raises `BenchError` for a
    loss that gives no number for `classes` classes."""
    if loss is None:
        return None
    made = _known(loss, one_logit)
    try:
        with torch.enable_grad():
            value = made(torch.zeros(2, classes, requires_grad=True), torch.eye(classes)[[0, 1]])
        assert value.dim() == 0 and value.requires_grad
    except Exception as error:  # of a stranger's function
        name = getattr(loss, "__name__", type(loss).__name__)
        raise BenchError(
            f"loss: {name} gives no number for logits (2, {classes}) and class probabilities of this shape "
            f"({first_line(error)}); give a function of both, or a loss of torch.nn"
        ) from None
    return made


def saved(loss: BatchLoss) -> Loss | None:
    """Convert a training's `loss`, as returned by `declared`, to the form of a reading file: name and options of a loss
    of torch.nn. None for a function that a file cannot hold."""
    if isinstance(loss, nn.MSELoss):
        return Loss(name="MSELoss", total=loss.reduction == "sum")
    name = _NAMES.get(loss.func) if isinstance(loss, partial) else None
    if not isinstance(loss, partial) or name is None:
        return None
    options = loss.keywords
    weights = [options.get(each) for each in ("weight", "positive")]
    if any(value is not None and value.dim() > 1 for value in weights):
        return None
    weight, positive = (None if value is None else tuple(value.reshape(-1).tolist()) for value in weights)
    smoothing = options.get("smoothing", 0.0)
    return Loss(name=name, smoothing=smoothing, weight=weight, positive=positive, total=options["total"])


def restored(loss: Loss | None) -> Chosen | None:
    """Make the training's loss again from a reading file: a loss of torch.nn with the options in `loss`; None stands
    for the mean cross entropy."""
    if loss is None:
        return None
    reduction = "sum" if loss.total else "mean"
    weight, positive = (None if each is None else torch.tensor(each) for each in (loss.weight, loss.positive))
    made: dict[str, Callable[[], Chosen]] = {
        "CrossEntropyLoss": lambda: nn.CrossEntropyLoss(weight, label_smoothing=loss.smoothing, reduction=reduction),
        "NLLLoss": lambda: nn.NLLLoss(weight, reduction=reduction),
        "BCEWithLogitsLoss": lambda: nn.BCEWithLogitsLoss(weight, pos_weight=positive, reduction=reduction),
        "MSELoss": lambda: nn.MSELoss(reduction=reduction),
    }
    return made[loss.name]()


def _known(loss: Chosen, one_logit: bool) -> BatchLoss:
    total = getattr(loss, "reduction", "mean") == "sum"
    if getattr(loss, "reduction", "mean") == "none":
        raise BenchError("loss: reduction is none; give 'mean' or 'sum', as the training adds the examples' losses up")
    if isinstance(loss, nn.CrossEntropyLoss):
        return partial(_cross_entropy, weight=loss.weight, smoothing=loss.label_smoothing, total=total)
    if isinstance(loss, nn.NLLLoss):
        return partial(_of_log_probabilities, weight=loss.weight, total=total)
    if isinstance(loss, nn.BCEWithLogitsLoss) and one_logit and loss.weight is None:
        return partial(_of_one_logit, positive=loss.pos_weight, total=total)
    if isinstance(loss, nn.BCEWithLogitsLoss):
        return partial(_binary, weight=loss.weight, positive=loss.pos_weight, total=total)
    return loss


def _cross_entropy(logits: Tensor, targets: Tensor, *, weight: Tensor | None, smoothing: float, total: bool) -> Tensor:
    """Cross entropy as torch computes it for class numbers: the mean divides by the weights of the true classes."""
    smooth = (1 - smoothing) * targets + smoothing / targets.shape[-1]
    each = -F.log_softmax(logits, dim=-1)
    return _reduced(each, smooth, targets, weight, total)


def _of_log_probabilities(outputs: Tensor, targets: Tensor, *, weight: Tensor | None, total: bool) -> Tensor:
    return _reduced(-outputs, targets, targets, weight, total)


def _reduced(each: Tensor, smooth: Tensor, targets: Tensor, weight: Tensor | None, total: bool) -> Tensor:
    of_class = torch.ones_like(each[0]) if weight is None else weight.to(each)
    summed = (smooth * each * of_class).sum()
    return summed if total else summed / (targets * of_class).sum()


def _binary(logits: Tensor, targets: Tensor, *, weight: Tensor | None, positive: Tensor | None, total: bool) -> Tensor:
    """Binary cross entropy of each class's logit against one-hot labels."""
    weight, positive = (None if value is None else value.to(logits) for value in (weight, positive))
    reduction = "sum" if total else "mean"
    return F.binary_cross_entropy_with_logits(logits, targets, weight, reduction=reduction, pos_weight=positive)


def _of_one_logit(logits: Tensor, targets: Tensor, *, positive: Tensor | None, total: bool) -> Tensor:
    """Binary cross entropy of a logit z, from the logits (0, z): their cross entropy, times the weight of class 1."""
    one = logits.new_ones(1)
    weight = torch.cat([one, one if positive is None else positive.to(one).reshape(1)])
    summed = -(targets * weight * F.log_softmax(logits, dim=-1)).sum()
    return summed if total else summed / len(logits)


def two_logits(module: nn.Module, arguments: Any, out: Tensor) -> Tensor:
    """Forward hook that turns a binary classifier with a single logit z into a classifier of two classes, so that
    attacks for several classes apply. `out` is the logit, (example, 1) or (example,), of `module`; `arguments`, the
    inputs, are not used. Return the logits (0, z), whose cross entropy is the binary cross entropy of z."""
    z = out.reshape(-1, 1)
    return torch.cat([torch.zeros_like(z), z], 1)


_NAMES: dict[Callable[..., Tensor], Literal["CrossEntropyLoss", "NLLLoss", "BCEWithLogitsLoss"]] = {
    _cross_entropy: "CrossEntropyLoss",
    _of_log_probabilities: "NLLLoss",
    _binary: "BCEWithLogitsLoss",
    _of_one_logit: "BCEWithLogitsLoss",
}
