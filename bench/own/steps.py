"""Local steps of a recorded training, computed again as attacks simulate them."""

from collections.abc import Iterable, Iterator, Mapping
from math import sqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.gradients import one_hot
from bench.own.criterion import Loss
from bench.own.local import SGD, Adam
from bench.own.recording import Recorded, Step
from bench.training import cross_entropy, loss_of

_PLAIN: dict[type[torch.optim.Optimizer], dict[str, Any]] = {  # optimizers that attacks simulate, with options' values
    torch.optim.SGD: {"dampening": 0, "nesterov": False, "maximize": False},
    torch.optim.Adam: {"amsgrad": False, "maximize": False},
    torch.optim.AdamW: {"amsgrad": False, "maximize": False},
}
_MOST_TIMES = 2**16  # largest factor of a loss


def local_training(optimizer: torch.optim.Optimizer) -> tuple[type[SGD], dict[str, Any]]:
    """Return `api.SGD` or `api.Adam`, and the options for it, as declared for an `optimizer`. Another optimizer counts
    as SGD."""
    group = optimizer.param_groups[0]
    decay = float(group.get("weight_decay", 0))
    if not isinstance(optimizer, torch.optim.Adam):
        return SGD, {"momentum": float(group.get("momentum", 0)), "weight_decay": decay}
    decoupled = bool(group.get("decoupled_weight_decay", isinstance(optimizer, torch.optim.AdamW)))
    betas = tuple(float(beta) for beta in group["betas"])
    return Adam, {"betas": betas, "eps": float(group["eps"]), "weight_decay": decay, "decoupled": decoupled}


def twin(record: Recorded, parameters: list[Tensor]) -> torch.optim.Optimizer:
    """Return an optimizer that trains as attacks simulate the optimizer in `record`, for the `parameters` of a copy of
    the model."""
    assert record.optimizer is not None
    rule, options = local_training(record.optimizer)
    kind: Any = torch.optim.SGD
    if rule is Adam:
        kind = torch.optim.AdamW if options["decoupled"] else torch.optim.Adam
        del options["decoupled"]
    made: torch.optim.Optimizer = kind(parameters, lr=record.steps[0].rates[0], **options)
    return made


def backward(module: nn.Module, step: Step, record: Recorded) -> None:
    """Compute the gradient of the recorded step `step` in `module`, a copy of the model with the loss that
    `bench.training.declare` stored. `record` is the training, which gives autocast and classes."""
    assert step.labels is not None
    kind, loss = record.autocast, loss_of(module)
    with torch.enable_grad():
        with torch.autocast("cpu", kind or torch.bfloat16, kind is not None):
            logits = module(step.inputs)
        logits = logits if kind is None else logits.float()
        if loss is cross_entropy:
            F.cross_entropy(logits, step.labels).backward()
        else:
            loss(logits, one_hot(step.labels, record.classes, logits.dtype)).backward()


def factor(record: Recorded, module: nn.Module) -> float:
    """Return the whole number, or one over a whole number, by which the first step's gradient in `record` is longer
    than its replay in `module`: a sum over the batch, or accumulated gradients. 1 for another factor or direction."""
    scale, cosine = _scale(record, module)
    number = round(max(scale, 1 / scale)) if scale > 0 else 1
    if cosine < 1 - 1e-6 or number > _MOST_TIMES or abs(max(scale, 1 / scale) / number - 1) > 1e-5:
        return 1.0
    return float(number) if scale > 1 else 1 / number


def times(factor: float, loss: Loss, logits: Tensor, targets: Tensor) -> Tensor:
    """Return `factor` times the batch's `loss` of `logits` and class probabilities `targets`, both (example, class)."""
    return factor * loss(logits, targets)


def distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor], names: Iterable[str]) -> float:
    """Return the Euclidean distance between the tensors `names` of `one` and `other`, both name → (*shape)."""
    return sqrt(sum(float((one[name].double() - other[name].double()).square().sum()) for name in names))


def flat(module: nn.Module) -> Tensor:
    """Return the gradient of all parameters of `module` that have a gradient, (coordinate,) float64."""
    return torch.cat([value.grad.double().flatten() for value in module.parameters() if value.grad is not None])


def facts_of_optimizer(record: Recorded) -> Iterator[str]:
    """Yield facts about the optimizer of the training `record` that attacks do not simulate."""
    optimizer = record.optimizer
    plain = _PLAIN.get(type(optimizer)) if optimizer is not None else None
    if optimizer is None or plain is None:
        yield f"the optimizer {type(optimizer).__name__}"
        return
    groups = optimizer.param_groups
    for name, value in plain.items():
        if any(group.get(name, value) != value for group in groups):
            yield f"{type(optimizer).__name__} with {name}"
    options = ("momentum", "weight_decay", "betas", "eps")
    if any(group.get(name, 0) != groups[0].get(name, 0) for group in groups for name in options):
        yield "parameter groups with different options"
    rates = [rate for step in record.steps for rate in step.rates]
    if min(rates) != max(rates):
        yield f"learning rates from {min(rates):g} to {max(rates):g}"


def facts_of_gradient(record: Recorded, module: nn.Module) -> Iterator[str]:
    """Yield facts about the difference between the first step's gradient in `record` and its replay in `module`."""
    scale, cosine = _scale(record, module)
    if cosine > 1 - 1e-6 and abs(scale - 1) > 1e-4:
        several = f" over {record.steps[0].passes} passes" if record.steps[0].passes > 1 else ""
        yield (
            f"the first step's gradient is {scale:.4g} times the gradient of the mean loss{several}: clipping, a loss "
            "scale or a sum over the batch"
        )
    elif cosine <= 1 - 1e-6:
        yield f"the first step's gradient has cosine {cosine:.4f} with the gradient of the recorded loss"


def _scale(record: Recorded, module: nn.Module) -> tuple[float, float]:
    """Return the length of the first step's gradient divided by that of its replay in `module`, and their cosine."""
    pairs = [
        (record.first_gradient[name].double().flatten(), value.grad.double().flatten())
        for name, value in module.named_parameters()
        if value.grad is not None and name in record.first_gradient
    ]
    if not pairs:
        return 1.0, 1.0
    used, own = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    scale = float(used.norm() / own.norm().clamp_min(1e-300))
    return scale, float(F.cosine_similarity(used, own, dim=0))
