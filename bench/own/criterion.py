"""A loss function in a recorded training, as a loss that attacks can use: its labels, options and function."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.own.losses import declared

Loss = Callable[..., Tensor]

OF_CLASSES = (F.cross_entropy, F.nll_loss)
OF_ALL_OUTPUTS = (
    F.mse_loss,
    F.l1_loss,
    F.smooth_l1_loss,
    F.huber_loss,
    F.binary_cross_entropy,
    F.binary_cross_entropy_with_logits,
    F.soft_margin_loss,
)
OTHERS = (F.kl_div, F.multi_margin_loss, F.multilabel_margin_loss, F.gaussian_nll_loss, F.poisson_nll_loss)
LOSSES = (*OF_CLASSES, *OF_ALL_OUTPUTS, *OTHERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """The loss of a recorded training in the form that attacks need: labels, number of classes, and the loss function
    with its options. Made by `criterion` from a call of torch's loss function."""

    labels: Tensor
    """(example,): class numbers."""
    counted: Tensor
    """(example,): False for an example that the loss ignores."""
    classes: int
    """Number of classes."""
    loss: Loss | None
    """The loss, as the argument `loss` of `api.reading`; None: the mean cross entropy."""
    key: str
    """Text that is equal for calls of the same loss with the same options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Reason why attacks cannot use the loss of a recorded training, such as a regression; `criterion` returns this in
    place of a `Criterion`."""

    reason: str
    """The reason in a few words."""


def criterion(
    function: Callable[..., Any], arguments: tuple[Any, ...], options: Mapping[str, Any], logits: Tensor
) -> Criterion | Unknown:
    """Read labels, classes and options from a recorded call of torch's loss function, so that attacks can use the same
    loss. Return an `Unknown` with the reason if attacks cannot use the loss.

    - `function`, `arguments`, `options`: the called function of `torch.nn.functional` with its arguments by position
      and by name.
    - `logits` (example, class), (example, 1) or (example,): the model's outputs."""
    bound = inspect.signature(function).bind(*arguments, **options)
    bound.apply_defaults()
    named = dict(bound.arguments)
    of, targets = named.pop("input"), named.pop("target")
    name = function.__name__
    if function in OTHERS or not isinstance(targets, Tensor):
        return Unknown(reason=f"the loss {name}")
    if named.pop("size_average", None) is not None or named.pop("reduce", None) is not None:
        return Unknown(reason="the loss options size_average and reduce")
    if named["reduction"] == "none":  # the mean follows; the replay shows another use
        named["reduction"] = "mean"
    view = next((each for each, turn in _VIEWS.items() if _equal(of, turn, logits)), None)
    if view is None:
        return Unknown(reason="a loss on another tensor than the model's output")
    targets, z = targets.detach(), logits.detach()
    if z.numel() == len(z) and function not in OF_CLASSES:
        return _of_one_logit(function, named, view, targets.reshape(-1))
    if function in OF_CLASSES:
        return _of_classes(named, view, targets, z)
    labels, _ = _smoothed(targets, z, exact=True)
    if labels is None:
        binary = targets.shape == z.shape and bool(((targets == 0) | (targets == 1)).all())
        words = "several classes an example (multi-label targets)" if binary else f"the loss {name} on real numbers"
        return Unknown(reason=words)
    loss = partial(_composed, _VIEWS[view], partial(_on_float, function, named))
    return Criterion(
        labels=labels,
        counted=torch.ones_like(labels, dtype=torch.bool),
        classes=z.shape[1],
        loss=loss,
        key=f"{view} {name} {_text(named)}",
    )


def _of_classes(named: dict[str, Any], view: str, targets: Tensor, z: Tensor) -> Criterion | Unknown:
    """Return a call of the cross entropy, or of `nll_loss` on log probabilities, as a loss for attacks."""
    ignored = named.pop("ignore_index")
    smoothing = named.get("label_smoothing", 0.0)
    if targets.is_floating_point():
        labels, own = _smoothed(targets, z, exact=False)
        if labels is None or own is None:
            return Unknown(reason="soft targets")
        smoothing, targets = smoothing + own - smoothing * own, labels
    if targets.dim() != 1:
        return Unknown(reason=f"targets of shape {tuple(targets.shape)}")
    options = {"weight": named["weight"], "label_smoothing": smoothing, "reduction": named["reduction"]}
    plain = nn.CrossEntropyLoss(**options)
    made: Loss | None = plain
    if view == "softmax" or view == "sigmoid":
        made = partial(_composed, _VIEWS[view], declared(plain, z.shape[1]) or plain)
    elif options == {"weight": None, "label_smoothing": 0.0, "reduction": "mean"}:
        made = None
    return Criterion(
        labels=targets.clamp_min(0).long(),
        counted=targets != ignored,
        classes=z.shape[1],
        loss=made,
        key=f"{view} {_text(options)}",
    )


def _of_one_logit(function: Loss, named: dict[str, Any], view: str, targets: Tensor) -> Criterion | Unknown:
    """Return a call of the binary cross entropy on a single output as a loss for attacks."""
    if not bool(((targets == 0) | (targets == 1)).all()):
        return Unknown(reason="targets that are real numbers, not classes: a regression")
    known = {F.binary_cross_entropy_with_logits: "", F.binary_cross_entropy: "sigmoid"}
    if function not in known:
        return Unknown(reason=f"the loss {function.__name__} on a single output")
    if known[function] != view:
        return Unknown(reason="a single output that is no logit; let the model return the number before its sigmoid")
    if named["weight"] is not None:
        return Unknown(reason="the loss option weight of the binary cross entropy")
    options = {"pos_weight": named.get("pos_weight"), "reduction": named["reduction"]}
    return Criterion(
        labels=targets.long(),
        counted=torch.ones_like(targets, dtype=torch.bool),
        classes=2,
        loss=nn.BCEWithLogitsLoss(**options),
        key=_text(options),
    )


_VIEWS: dict[str, Callable[[Tensor], Tensor]] = {  # of the model's outputs, which a loss may get
    "": lambda z: z,
    "log_softmax": lambda z: F.log_softmax(z, dim=-1),
    "softmax": lambda z: F.softmax(z, dim=-1),
    "sigmoid": torch.sigmoid,
}


def _equal(of: Any, turn: Callable[[Tensor], Tensor], logits: Tensor) -> bool:
    if not isinstance(of, Tensor) or of.numel() != logits.numel():
        return False
    with torch.no_grad():
        return torch.equal(of.reshape(-1), turn(logits).to(of).reshape(-1))


def _smoothed(targets: Tensor, z: Tensor, *, exact: bool) -> tuple[Tensor | None, float | None]:
    """Return the class numbers behind class probabilities `targets` (example, class), and their label smoothing; None
    if they are no smoothed one-hot labels. `exact` True takes one-hot labels only."""
    if targets.shape != z.shape or targets.dim() != 2:
        return None, None
    labels = targets.argmax(1)
    rest = targets.double().scatter(1, labels[:, None], torch.nan).nanmean()
    smoothing = float(rest) * targets.shape[1]
    like = (1 - smoothing) * F.one_hot(labels, targets.shape[1]) + smoothing / targets.shape[1]
    near = torch.allclose(targets.double(), like.double(), rtol=0, atol=1e-6)
    return (labels, round(smoothing, 6)) if near and 0 <= smoothing < (1e-9 if exact else 1) else (None, None)


def _composed(turn: Callable[[Tensor], Tensor], loss: Loss, logits: Tensor, targets: Tensor) -> Tensor:
    return loss(turn(logits), targets)


def _on_float(function: Loss, options: Mapping[str, Any], logits: Tensor, targets: Tensor) -> Tensor:
    return function(logits, targets.to(logits), **options)


def _text(options: Mapping[str, Any]) -> str:
    return str({key: value.tolist() if isinstance(value, Tensor) else value for key, value in options.items()})
