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
from bench.own.recording import OPTIONS, Recorded, Step
from bench.training import cross_entropy, loss_of

_PLAIN: dict[type[torch.optim.Optimizer], dict[str, Any]] = {  # optimizers that attacks simulate, with options' values
    torch.optim.SGD: {"dampening": 0, "maximize": False},
    torch.optim.Adam: {"amsgrad": False, "maximize": False},
    torch.optim.AdamW: {"amsgrad": False, "maximize": False},
}
_CLIPPED = 1e-6  # torch adds this number to a norm
_ALIKE = 1e-4  # relative difference of lengths that count as equal
_MOST_TIMES = 2**16  # largest factor of a loss


def local_training(record: Recorded) -> tuple[type[SGD], dict[str, Any]]:
    """Read a client's local training from the optimizer in `record`, a recorded training. Return `api.SGD` or
    `api.Adam`, and the arguments for it (learning rate, momentum, weight decay, …). An optimizer of another class is
    read as SGD."""
    optimizer = record.optimizer
    assert optimizer is not None
    group = optimizer.param_groups[0]
    decay = float(group.get("weight_decay", 0))
    options = {"weight_decay": decay, **_paces(record)}
    if len(record.steps) > 1 and [step.kept for step in record.steps] == [False] + [True] * (len(record.steps) - 1):
        options["kept"] = True
    decays = {name: float(own.get("weight_decay", 0)) for name, own in _groups(record).items()}
    if any(value != decay for value in decays.values()):
        options["decays"] = decays
    if not isinstance(optimizer, torch.optim.Adam):
        momentum = float(group.get("momentum", 0))
        return SGD, {**options, "momentum": momentum, "nesterov": bool(group.get("nesterov")) and momentum > 0}
    decoupled = bool(group.get("decoupled_weight_decay", isinstance(optimizer, torch.optim.AdamW)))
    betas = tuple(float(beta) for beta in group["betas"])
    return Adam, {**options, "betas": betas, "eps": float(group["eps"]), "decoupled": decoupled}


def _groups(record: Recorded) -> dict[str, dict[str, Any]]:
    """Parameter group of each trained parameter, by the parameter's name."""
    assert record.module is not None and record.optimizer is not None
    of = {id(value): group for group in record.optimizer.param_groups for value in group["params"]}
    named = record.module.named_parameters()
    return {name: of[id(value)] for name, value in named if name in record.trained and id(value) in of}


def _paces(record: Recorded) -> dict[str, Any]:
    """Largest learning rate as `lr`, factors of the other parameter groups, and the schedule if the rate changes."""
    assert record.optimizer is not None
    groups = record.optimizer.param_groups
    of_groups = [max(step.rates[at] for step in record.steps) for at in range(len(groups))]
    lead = of_groups.index(max(of_groups))
    lr = of_groups[lead]
    found: dict[str, Any] = {"lr": lr}
    if lr and any(step.rates[lead] != lr for step in record.steps):
        found["schedule"] = tuple(step.rates[lead] / lr for step in record.steps)
    at = {id(group): number for number, group in enumerate(groups)}
    factors = {name: of_groups[at[id(group)]] / lr for name, group in _groups(record).items()} if lr else {}
    if any(factor != 1 for factor in factors.values()):
        found["factors"] = factors
    return found


def shortest(record: Recorded) -> float | None:
    """Find the threshold of gradient clipping (`torch.nn.utils.clip_grad_norm_`) in a recorded training `record`: the
    length to which all clipped steps shorten their gradients. None if the steps do not clip, or have no common
    threshold."""
    clipped = [step.shortened * (step.length + _CLIPPED) for step in record.steps if step.shortened != 1]
    clip = sum(clipped) / max(len(clipped), 1)
    whole = [step.length for step in record.steps if step.shortened == 1]
    if (
        not clip
        or any(abs(each / clip - 1) > _ALIKE for each in clipped)
        or max(whole, default=0) > clip * (1 + _ALIKE)
    ):
        return None
    rounded = float(f"{clip:.4g}")
    return rounded if abs(rounded / clip - 1) < _ALIKE / 10 else clip


class Twin:
    """Optimizer for the replay of a recorded training: trains a copy of the model by the same rule by which attacks
    simulate the client. If the replay gives the recorded weights, attacks can simulate this client.

    - `record`: the recorded training; `rule`, `options`: `api.SGD` or `api.Adam` with its arguments.
    - `module`: copy of the model at the weights before the training."""

    def __init__(self, record: Recorded, rule: type[SGD], options: Mapping[str, Any], module: nn.Module) -> None:
        own = {name: value for name, value in module.named_parameters() if value.requires_grad}
        factors, decays, decay = options.get("factors", {}), options.get("decays", {}), options["weight_decay"]
        kind: Any = torch.optim.SGD
        if rule is Adam:
            kind = torch.optim.AdamW if options["decoupled"] else torch.optim.Adam
        names = ("betas", "eps") if rule is Adam else ("momentum", "nesterov")
        groups = [
            {"params": [value], "lr": options["lr"] * factors.get(name, 1.0), "weight_decay": decays.get(name, decay)}
            for name, value in own.items()
        ]
        self._optimizer: torch.optim.Optimizer = kind(groups, lr=options["lr"], **{n: options[n] for n in names})
        self._rates = [group["lr"] for group in groups]
        self._start = [value.detach().clone() for value in own.values()]
        self._own, self._options, self._done = list(own.values()), options, 0

    def zero_grad(self) -> None:
        """Set the gradients to zero before a replayed step. If the recorded loop never did so (option `kept`), the
        gradients add up over the steps here, too."""
        if not self._options.get("kept"):
            self._optimizer.zero_grad()

    def step(self) -> None:
        """Apply the next local step to the weights, with the gradients already computed: FedProx's term, clipping and
        the scheduled rate, if the recorded training has them."""
        options, schedule = self._options, self._options.get("schedule", ())
        for value, start in zip(self._own, self._start, strict=True):
            if options.get("proximal") and value.grad is not None:
                value.grad.add_(value.detach() - start, alpha=options["proximal"])
        if options.get("clip") is not None:
            nn.utils.clip_grad_norm_(self._own, options["clip"])
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * (schedule[self._done] if schedule else 1.0)
        self._optimizer.step()
        self._done += 1


def backward(module: nn.Module, step: Step, record: Recorded) -> None:
    """Run the forward and backward pass of a recorded local step `step` again in `module`; its parameters then hold the
    gradient. `module` is a copy of the model with the loss that `bench.training.declare` stored; `record` is the whole
    recording, which gives autocast and the number of classes."""
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


def factor(record: Recorded, module: nn.Module, *, clipped: bool) -> float:
    """Find a scale of the client's loss, such as a sum over the batch in place of the mean, or accumulated gradients.
    Return the ratio of the first step's recorded gradient to its replay in `module`, if the ratio is a whole number or
    one over a whole number, and both have the same direction; otherwise 1.

    - `record`: the recorded training.
    - `clipped`: True compares with the recorded gradient before clipping."""
    scale, cosine = _scale(record.first_computed if clipped else record.first_gradient, module)
    number = round(max(scale, 1 / scale)) if scale > 0 else 1
    if cosine < 1 - 1e-6 or number > _MOST_TIMES or abs(max(scale, 1 / scale) / number - 1) > 1e-5:
        return 1.0
    return float(number) if scale > 1 else 1 / number


def times(factor: float, loss: Loss, logits: Tensor, targets: Tensor) -> Tensor:
    """Scaled loss function of a replay: return `factor` times the batch's `loss` of `logits` and class probabilities
    `targets`, both (example, class)."""
    return factor * loss(logits, targets)


def distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor], names: Iterable[str]) -> float:
    """Return the Euclidean distance between the tensors `names` of `one` and `other`, both name → (*shape)."""
    return sqrt(sum(float((one[name].double() - other[name].double()).square().sum()) for name in names))


def flat(module: nn.Module) -> Tensor:
    """Return the gradient of all parameters of `module` that have a gradient, (coordinate,) float64."""
    return torch.cat([value.grad.double().flatten() for value in module.parameters() if value.grad is not None])


def facts_of_optimizer(record: Recorded) -> Iterator[str]:
    """Yield a sentence for each property of the client's optimizer in `record`, such as an unknown class or `amsgrad`,
    that attacks cannot simulate."""
    optimizer = record.optimizer
    plain = _PLAIN.get(type(optimizer)) if optimizer is not None else None
    if optimizer is None or plain is None:
        yield f"the optimizer {type(optimizer).__name__}"
        return
    groups = optimizer.param_groups
    for name, value in plain.items():
        if any(group.get(name, value) != value for group in groups):
            yield f"{type(optimizer).__name__} with {name}"
    options = ("momentum", "nesterov", "betas", "eps")
    if any(group.get(name, 0) != groups[0].get(name, 0) for group in groups for name in options):
        yield "parameter groups with different options"
    largest = [max(column) or 1.0 for column in zip(*(step.rates for step in record.steps), strict=True)]
    paces = [[rate / most for rate, most in zip(step.rates, largest, strict=True)] for step in record.steps]
    if any(max(pace) - min(pace) > _ALIKE for pace in paces):
        yield "learning rates of parameter groups that change differently"
    if len({step.options for step in record.steps}) > 1:
        yield f"{', '.join(OPTIONS[:2])} or {OPTIONS[2]} that changes between steps, as by OneCycleLR's cycle_momentum"


def facts_of_gradient(record: Recorded, module: nn.Module) -> Iterator[str]:
    """Yield a sentence about the difference between the first step's gradient in `record` and its replay in `module`:
    another length or another direction. The sentence helps the user to find an unrecorded part of the training, such as
    clipping."""
    scale, cosine = _scale(record.first_gradient, module)
    if cosine > 1 - 1e-6 and abs(scale - 1) > 1e-4:
        several = f" over {record.steps[0].passes} passes" if record.steps[0].passes > 1 else ""
        yield (
            f"the first step's gradient is {scale:.4g} times the gradient of the mean loss{several}: clipping, a loss "
            "scale or a sum over the batch"
        )
    elif cosine <= 1 - 1e-6:
        yield f"the first step's gradient has cosine {cosine:.4f} with the gradient of the recorded loss"


def _scale(gradient: Mapping[str, Tensor], module: nn.Module) -> tuple[float, float]:
    """Return the length of the first step's `gradient`, name → (*shape), divided by that of its replay in `module`, and
    their cosine."""
    pairs = [
        (gradient[name].double().flatten(), value.grad.double().flatten())
        for name, value in module.named_parameters()
        if value.grad is not None and name in gradient
    ]
    if not pairs:
        return 1.0, 1.0
    used, own = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    scale = float(used.norm() / own.norm().clamp_min(1e-300))
    return scale, float(F.cosine_similarity(used, own, dim=0))
