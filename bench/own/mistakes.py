"""The likeliest mistake in a user's declaration, if the declared protocol does not explain the update."""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import combinations

import torch
from torch import Tensor, nn

from bench.attacks.objective.local import momentum_gain
from bench.gradients import BATCH_NORM
from bench.own.copies import by_mode
from bench.own.likeness import Likeness, likeness
from bench.own.losses import declared
from bench.own.options import options
from bench.own.replay import best_rate, moved_by, replayed, trained
from bench.training import declare, mixes
from bench.trip import AdamRule, Reading

_NEAR = 0.05  # relative tolerance between a scale and a protocol number
_LEAST_SIMILAR = 4  # number of readings on which mistakes are tested
_MOST_STEPS = 16  # largest number of local steps tested for a single declared step
_Columns = tuple[tuple[float, ...], tuple[float, ...]]
_NORMALISED: dict[int, dict[str, _Columns]] = {  # channels → mean and deviation from tutorials
    1: {"MNIST's mean and deviation": ((0.1307,), (0.3081,))},
    3: {
        "CIFAR-10's mean and deviation": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        "ImageNet's mean and deviation": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        "a mean and deviation of .5": ((0.5,) * 3, (0.5,) * 3),
    },
}


def likeliest(
    reading: Reading, observed: dict[str, Tensor], inputs: Tensor, labels: Tensor, compared: Likeness, enough: float
) -> str | None:
    """Return the user's likeliest mistake in the declared training, with a remedy; None if no known mistake explains
    the update.

    - `reading`: the user's reading, which declares the training (model, weights, batch, steps, rate).
    - `observed`: the update, name → (reading, *shape), in gradient units.
    - `inputs` (reading, example, *shape), `labels` (reading, example): true examples.
    - `compared`: comparison of the update with its replay (the declared training on the true examples).
    - `enough`: least cosine between the update and the update under a mistake, for this mistake to be accepted."""
    cosine, scale = compared.least
    if option := options(reading, observed, inputs, labels):
        return option
    if cosine >= enough:
        return _of_scale(reading, scale)
    if bool((compared.scale == 0).any()):
        zero = int((compared.scale == 0).int().argmax())
        return f"the gradient of reading {zero} is zero; take it after loss.backward(), and before zero_grad()"
    rows = compared.cosine.argsort()[:_LEAST_SIMILAR]
    reading, inputs, labels = reading.of(rows.tolist()), inputs[rows], labels[rows]
    observed = {name: value[rows] for name, value in observed.items()}
    several = "" if len(compared.cosine) == 1 else f" (reading {compared.worst})"
    if float(compared.cosine.min()) <= -enough:
        return f"the update has the opposite sign{several}: give the gradient, or before= and after= in this order"
    if (rate := _another_rate(reading, observed, inputs, labels, enough)) is not None:
        return f"the client's learning rate is near {rate:.2g}, and the declared rate is {reading.rate:.2g}; declare it"
    for text, by_rate in _of_rates(reading, inputs, labels):
        rate, reached = best_rate(observed, by_rate, reading.rate)
        if reached >= enough:
            return text.format(rate=rate)
    if exchanged := _exchanged(observed, replayed(reading, inputs, labels), enough):
        return exchanged
    for text, replay in _tries(reading, inputs, labels):
        again = likeness(observed, replay())
        if again.least[0] >= enough and abs(again.least[1] - 1) < 1:
            return text
        if float(again.cosine.max()) <= -enough:
            return f"{text}, and the opposite sign"
    return None


def unexplained(reading: Reading, observed: dict[str, Tensor], replay: dict[str, Tensor], compared: Likeness) -> str:
    """Return possible causes, as text, of an update that neither the declared training nor a known mistake of the user
    explains.

    - `reading`: the reading as declared by the user.
    - `observed`, `replay`: update that was sent, and update of the declared training on the true examples, each name →
      (reading, *shape).
    - `compared`: comparison of `observed` and `replay`."""
    cosine = compared.least[0]
    gone = {
        name: float(((value == 0) & (replay[name] != 0)).sum() / (replay[name] != 0).sum().clamp_min(1))
        for name, value in observed.items()
    }
    name = max(gone, key=gone.__getitem__)
    if gone[name] == 1:
        return f"{name!r} is zero: frozen or withheld; freeze it in the model, too"
    if gone[name] > 0.2 and reading.description is None and cosine > 0.1:
        return f"{gone[name]:.0%} of {name!r} is zero where the replay is not: a defense?  Declare it as defense="
    weights = {name: value[0].expand_as(observed[name]) for name, value in reading.weights.items()}
    rest = likeness({name: value - replay[name] for name, value in observed.items()}, weights)
    if rest.least[0] > 0.9:
        return f"the remainder is along the weights: weight decay near {float(rest.share.mean()):.1g}?  Declare it"
    if missing := initial_statistics(reading):
        return missing
    causes = ["other weights, another model or loss, other examples or labels", "augmentation"]
    if any(getattr(layer, "p", getattr(layer, "dropout", 0)) not in (0, None) for layer in reading.model.modules()):
        causes.insert(0, "dropout in training mode, whose draws are unknown: call model.eval() first")
    if reading.steps > 1:
        causes.insert(0, "another order of the local steps, clipping in each")
    if reading.unit != 1 and reading.description is None:
        causes.append("momentum of a server's optimizer (global weights need api.before_server)")
    if any("BatchNorm" in type(layer).__name__ for layer in reading.model.modules()):
        causes.append("BatchNorm in the other mode, or without its buffers")
    if abs(float(compared.share.mean()) - 1) < 0.1 and cosine < 0.97:
        causes.insert(0, "noise that was not declared")
    return f"no known mistake explains the update: {', '.join(causes)}, or an optimizer that is not plain SGD"


def _of_scale(reading: Reading, scale: float) -> str:
    known = [
        (reading.rate, "the rate: a difference of weights, read as a gradient; give before=, after= and local="),
        (1 / reading.rate, "1 over the rate: a gradient, read as a difference of weights; leave unit out"),
        (reading.batch, "the batch: a sum over it, where a mean was declared; divide by it"),
        (1 / reading.batch, "1 over the batch: a mean was divided by it once more"),
        (reading.steps, "the local steps: their sum, where their mean was declared; give before=, after= and local="),
        (1 / reading.steps, "1 over the local steps: a mean over them; multiply by them"),
    ]
    parts = round(scale)
    if 1 < parts < reading.batch and reading.batch % parts == 0:
        text = f"{parts}: gradients of {parts} parts of the batch, accumulated without a division; divide by {parts}"
        known.append((parts, text))
    power = math.log2(scale) if scale > 0 else 0.0
    if abs(power) > 6.5 and abs(power - round(power)) < _NEAR:
        remedy = "unscale the gradient" if power > 0 else "the gradient was unscaled twice"
        known.append((scale, f"2^{round(power)}: a loss scaler's; {remedy}"))
    for number, text in known:
        if number != 1 and abs(scale / number - 1) < _NEAR:
            return f"the scale is {text}"
    short = "clipping, a learning rate or 1/B that was left in" if scale < 1 else "a sum in place of a mean"
    return f"the direction is right, the length is not: {short}; divide by {scale:.3g}, or declare unit or defense"


def _exchanged(observed: dict[str, Tensor], replay: dict[str, Tensor], enough: float) -> str | None:
    """Return the mistake that two tensors of equal shape stand in place of each other; None if not."""
    for first, second in combinations(observed, 2):
        if observed[first].shape == observed[second].shape:
            names = {first: second, second: first}
            again = likeness({name: observed[names.get(name, name)] for name in observed}, replay)
            if again.least[0] >= enough and abs(again.least[1] - 1) < _NEAR:
                return f"{first!r} and {second!r} are exchanged: give the arrays by name, or in the model's order"
    return None


def _another_rate(
    reading: Reading, observed: dict[str, Tensor], inputs: Tensor, labels: Tensor, enough: float
) -> float | None:
    """Return the learning rate of several local steps that explains direction and length of the update; None if no
    rate, or the declared rate, does."""
    if not reading.stepwise or reading.senders > 1:
        return None

    def by_rate(rate: float) -> dict[str, Tensor]:
        return replayed(replace(reading, rate=rate), inputs, labels)

    rate, reached = best_rate(observed, by_rate, reading.rate)
    scale = likeness(observed, by_rate(rate)).least[1] * reading.rate / rate
    same = abs(rate / reading.rate - 1) < _NEAR
    return None if reached < enough or same or abs(scale - 1) > 2 * _NEAR else rate


def _of_rates(
    reading: Reading, inputs: Tensor, labels: Tensor
) -> Iterator[tuple[str, Callable[[float], dict[str, Tensor]]]]:
    """Yield (mistake, function from learning rate to update) for mistakes with an unknown learning rate."""
    raw = {name: value[:, 0] for name, value in reading.values.items()}
    yield (
        "the model has already moved: these weights are from after a step of rate {rate:.2g}; give those before it"
        if reading.unit == 1
        else "the model has already moved: these weights are from after the round; give those before it",
        lambda rate: moved_by(reading, raw, rate, inputs, labels),
    )
    if reading.steps > 1 or reading.description is not None:
        return
    for steps in range(2, min(reading.examples, _MOST_STEPS) + 1):
        batch, rest = divmod(reading.examples, steps)
        if not rest:
            several = replace(reading, steps=steps, batch=batch)
            yield (
                f"several local steps, read as one gradient: {steps} of {batch} at a rate near {{rate:.2g}}; give "
                f"before=, after= and local=api.SGD(lr=…, batch={batch}, steps={steps})",
                lambda rate, several=several: replayed(replace(several, rate=rate), inputs, labels),  # type: ignore[misc]
            )


def _tries(reading: Reading, inputs: Tensor, labels: Tensor) -> Iterator[tuple[str, Callable[[], dict[str, Tensor]]]]:
    """Yield (mistake, function that returns the update under this mistake) for mistakes with a known learning rate."""
    if reading.description is not None:
        yield (
            "the defense is declared and was not applied; leave it out",
            partial(replayed, replace(reading, description=None), inputs, labels),
        )
    raw = {name: value[:, 0] for name, value in reading.values.items()}
    yield (
        "before and after are swapped",
        lambda: {name: -value for name, value in moved_by(reading, raw, -1.0, inputs, labels).items()},
    )
    if reading.steps > 1:
        yield (
            "one gradient of all examples, read as several local steps; give steps=1",
            partial(replayed, replace(reading, steps=1, batch=reading.examples, ragged=False), inputs, labels),
        )
    distinct = inputs.shape[1]
    if reading.ragged and distinct // reading.batch and reading.examples == distinct:
        whole = distinct // reading.batch
        kept = whole * reading.batch
        yield (
            f"the last, smaller batch is missing, as by drop_last=True: give steps={whole} in place of epochs=1, and "
            f"the {kept} examples that were trained on",
            partial(_without_rest, reading, whole, inputs[:, :kept], labels[:, :kept]),
        )
    if int(labels.min()) > 0 and len(labels.unique()) > 1:
        yield ("the labels count from 1: give classes from 0", partial(replayed, reading, inputs, labels - 1))
    if 1 < reading.steps <= _MOST_STEPS and reading.unit != 1 and distinct == reading.examples and not reading.ragged:
        for decay in (0.5, 0.9, 0.99, 0.999):
            yield (
                f"a moving average of the weights with decay {decay} was sent (EMA); give the weights themselves",
                partial(_averaged, reading, decay, inputs, labels),
            )
    for text, replay in _optimizers(reading, inputs, labels):
        yield text, replay
    for name, loss in (("MSELoss", nn.MSELoss()), ("BCEWithLogitsLoss", nn.BCEWithLogitsLoss())):
        yield (
            f"the loss is nn.{name} on one-hot labels; declare loss=nn.{name}()",
            partial(_with_loss, reading, inputs, labels, loss),
        )
    if any(by_mode(layer) for layer in reading.model.modules()):
        normalised = any(isinstance(layer, BATCH_NORM) for layer in reading.model.modules())
        what = "BatchNorm was in training mode: it mixes the examples of a batch"
        yield (
            f"{what if normalised else 'the model was in training mode, and computes otherwise there'}; give "
            "batch_statistics=True, or call model.eval() before the gradient is taken",
            partial(trained, reading, inputs, labels, batch_statistics=True),
        )
    low, high = reading.value_range
    unit = (inputs - low) / (high - low)
    others = {"-1..1": 2 * unit - 1, "0..255": 255 * unit, "0..1": unit}
    if reading.kind.spatial:
        for text, (mean, deviation) in _NORMALISED.get(reading.shape[0], {}).items():
            others[text] = (unit - _column(mean)) / _column(deviation)
    for text, other in others.items():
        yield (
            f"the gradient is of inputs in another scale ({text}); normalise inside the model, as its first layer",
            partial(replayed, reading, other.to(inputs), labels),
        )
    if reading.examples == 1:
        for label in range(reading.classes):
            if len(labels) == 1 and label != int(labels):
                yield (
                    f"the gradient is of class {label}, not {int(labels)}; give the labels that it was taken with",
                    partial(replayed, reading, inputs, torch.full_like(labels, label)),
                )


def _optimizers(
    reading: Reading, inputs: Tensor, labels: Tensor
) -> Iterator[tuple[str, Callable[[], dict[str, Tensor]]]]:
    """Yield (mistake, function that returns the update) for other optimizers of a client at the declared rate."""
    if reading.unit == 1 or reading.description is not None:
        return
    if reading.adam is None:
        for name, decoupled in (("Adam", False), ("AdamW", True)):
            more = ", decoupled=True" if decoupled else ""
            yield (
                f"the optimizer is {name}, not SGD: declare local=api.Adam(lr=…{more})",
                partial(_by_adam, reading, AdamRule(decoupled=decoupled), inputs, labels),
            )
    if reading.steps > 1:
        momentum = reading.momentum or 0.9
        yield (
            f"the optimizer is SGD with nesterov=True: declare momentum={momentum}, nesterov=True",
            partial(
                trained,
                reading,
                inputs,
                labels,
                make=partial(torch.optim.SGD, lr=reading.rate, momentum=momentum, nesterov=True),
            ),
        )
    others: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
        "RMSprop": partial(torch.optim.RMSprop, lr=reading.rate),
        "Adagrad": partial(torch.optim.Adagrad, lr=reading.rate),
    }
    for name, make in others.items():
        yield (
            f"the optimizer is {name}, which no attack simulates; train with SGD, Adam or AdamW",
            partial(trained, reading, inputs, labels, make=make),
        )
    if reading.adam is None and reading.steps > 1 and not reading.momentum:
        for momentum in (0.9, 0.5):
            yield (
                f"the client's SGD has a momentum of {momentum}: declare momentum={momentum}",
                partial(_by_momentum, reading, momentum, inputs, labels),
            )


def _by_adam(reading: Reading, rule: AdamRule, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    decay = 0.01 if rule.decoupled else reading.weight_decay  # AdamW's default
    return replayed(replace(reading, adam=rule, momentum=0.0, weight_decay=decay), inputs, labels)


def _by_momentum(reading: Reading, momentum: float, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The update with momentum, in the reading's own unit."""
    longer = momentum_gain(momentum, reading.steps)
    update = replayed(replace(reading, momentum=momentum), inputs, labels)
    return {name: longer * value for name, value in update.items()}


def _averaged(reading: Reading, decay: float, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The update of an exponential moving average of the weights, which starts at the weights before the training."""
    total: dict[str, Tensor] = {}
    for steps in range(1, reading.steps + 1):
        used = steps * reading.batch
        part = replayed(replace(reading, steps=steps), inputs[:, :used], labels[:, :used])
        share = (1 - decay) * decay ** (reading.steps - steps) * steps / reading.steps
        total = {name: total.get(name, 0.0) + share * value for name, value in part.items()}
    return total


def _without_rest(reading: Reading, steps: int, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The update of the first `steps` local steps, in the reading's own unit."""
    update = replayed(replace(reading, steps=steps, ragged=False), inputs, labels)
    return {name: steps / reading.steps * value for name, value in update.items()}


def _with_loss(reading: Reading, inputs: Tensor, labels: Tensor, loss: nn.Module) -> dict[str, Tensor]:
    model = copy.copy(reading.model)
    declare(model, loss=declared(loss, reading.classes), batch_statistics=mixes(reading.model))
    return replayed(replace(reading, model=model), inputs, labels)


def initial_statistics(reading: Reading) -> str | None:
    """Return a warning as text for a BatchNorm layer in eval mode whose running statistics are those of a new layer
    (mean 0, variance 1), as if the user's model had lost its statistics; None without such a layer."""
    for path, layer in reading.model.named_modules():
        running = isinstance(layer, BATCH_NORM) and not layer.training and layer.running_mean is not None
        if running and not layer.running_mean.any() and bool((layer.running_var == 1).all()):
            return f"the running statistics of {path} are missing: it has the initial ones; give the whole state_dict()"
    return None


def _column(values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values)[:, None, None]
