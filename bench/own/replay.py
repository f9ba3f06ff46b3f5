"""Replays: a client's update computed again on the true examples, as declared or under a possible mistake."""

import copy
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from bench.attacks.objective.distance import Distance
from bench.attacks.objective.local import momentum_gain
from bench.attacks.objective.mismatch import Mismatch, observations
from bench.attacks.objective.repeats import distinct_examples
from bench.gradients import one_hot
from bench.own.copies import by_mode
from bench.own.likeness import likeness
from bench.training import loss_of
from bench.trip import Reading, Tensors

_BISECTIONS = 7


def replayed(reading: Reading, inputs: Tensor, labels: Tensor, at: Tensor | None = None) -> dict[str, Tensor]:
    """Compute a client's update again, by the declared training on the true examples: name → (reading, *shape), in
    gradient units.

    - `reading`: the user's reading, which declares the training (model, weights, batch, steps, rate).
    - `inputs` (reading, example, *shape), `labels` (reading, example): the distinct true examples.
    - `at` (use,) or (reading, use): numbers of the examples in the order of local steps; None: as listed, in each
      epoch."""
    at = positions(reading) if at is None else at
    rows = torch.arange(len(inputs))[:, None]
    targets = one_hot(labels[rows, at], reading.classes, inputs.dtype)
    return shown(reading, inputs[rows, at], targets)


def shown(reading: Reading, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Simulate the update that a client sends after training on given examples: name → (reading, *shape), in gradient
    units.

    - `reading`: declares the training (model, weights, steps, rate).
    - `inputs` (reading, use, *shape), `targets` (reading, use, class): examples and class probabilities in the order of
      local steps; an example in several epochs occurs several times."""
    mismatch = Mismatch(
        reading=reading, distance=Distance(kind="l2"), unrolled=reading.stepwise and reading.senders == 1
    )
    update = mismatch.simulated(observations(reading)[0], inputs, targets)
    return {name: value.detach() for name, value in update.items()}


def positions(reading: Reading, draw: int | None = None, first: int = 1) -> Tensor:
    """Return the order in which a client uses its examples, over all local steps and epochs: numbers of the examples,
    (use,). `reading` declares the numbers of examples and steps.

    - `draw`: seed of a random order in each epoch; None: every epoch has the listed order.
    - `first`: number of epochs at the start that keep the listed order under any `draw`."""
    distinct, generator = distinct_examples(reading), torch.Generator().manual_seed(draw or 0)
    epochs = -(-reading.examples // distinct)
    passes = [
        torch.arange(distinct) if draw is None or n < first else torch.randperm(distinct, generator=generator)
        for n in range(epochs)
    ]
    return torch.cat(passes)[: reading.examples]


def moved_by(reading: Reading, raw: Tensors, rate: float, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Test for a frequent mistake: the user gave the weights w after the local step in place of the weights before.
    Compute the update again at w + `rate`·`raw`, the weights before the step in this case: name → (reading, *shape).

    - `reading`: the user's reading (observed update), which declares the training and the weights w.
    - `raw`: the update as sent, name → (reading, *shape); a step subtracts `rate`·`raw`.
    - `inputs` (reading, example, *shape), `labels` (reading, example): true examples."""
    rows = []
    for row in range(len(reading)):
        weights = {name: value + rate * raw[name][row] for name, value in reading.weights.items()}
        rows.append(replayed(replace(reading, weights=weights), inputs, labels))
    return {name: torch.stack([each[name][row] for row, each in enumerate(rows)]) for name in raw}


def best_rate(sent: Tensors, by_rate: Callable[[float], dict[str, Tensor]], declared: float) -> tuple[float, float]:
    """Search for the learning rate that best explains the update `sent`. Return the rate, and the cosine between the
    update and its replay (the update computed again) at this rate, for the worst update.

    - `sent`: updates, name → (reading, *shape).
    - `by_rate`: function from a rate to the replay, name → (reading, *shape).
    - `declared`: the user's rate; the search starts from this rate and from powers of ten."""

    def reached(rate: float) -> float:
        return likeness(sent, by_rate(rate)).least[0]

    cosines = {rate: reached(rate) for rate in (*(10.0**n for n in range(-4, 2)), declared)}
    best, factor = max(cosines, key=cosines.__getitem__), 10**0.5
    for _ in range(_BISECTIONS):
        for rate in (best / factor, best * factor):
            cosines[rate] = reached(rate)
        best, factor = max(cosines, key=cosines.__getitem__), factor**0.5
    return best, cosines[best]


def trained(
    reading: Reading,
    inputs: Tensor,
    labels: Tensor,
    *,
    batch_statistics: bool = False,
    autocast: torch.dtype | None = None,
    make: Callable[[list[Tensor]], torch.optim.Optimizer] | None = None,
) -> dict[str, Tensor]:
    """Compute the client's update under training options that attacks do not simulate, such as autocast or another
    optimizer, to find the option that explains the user's reading. A plain PyTorch training loop runs on the true
    examples. Return name → (reading, *shape), in gradient units.

    - `reading`: the user's reading, which declares the training (model, weights, batch, steps, rate).
    - `inputs` (reading, example, *shape), `labels` (reading, example): true examples.
    - `batch_statistics`: True puts BatchNorm and own layers in training mode; dropout stays off.
    - `autocast`: dtype of the forward pass under `torch.autocast`; None: full precision.
    - `make`: function from parameters to their optimizer; None: the declared optimizer."""
    rows = []
    for x, y in zip(inputs, labels, strict=True):
        model = copy.deepcopy(reading.model)
        for layer in model.modules() if batch_statistics else ():
            layer.training = by_mode(layer)
        parameters = {name: model.get_parameter(name) for name in reading.weights}
        start = {name: value[0] for name, value in reading.weights.items()}
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(start[name])
        own: list[Tensor] = [*parameters.values()]
        optimizer = _optimizer(reading, own) if make is None else make(own)
        for at in positions(reading).split(list(reading.batches)):
            optimizer.zero_grad()
            try:
                with torch.enable_grad(), torch.autocast("cpu", autocast or torch.bfloat16, autocast is not None):
                    targets = one_hot(y[at], reading.classes, x.dtype)
                    logits = model(x[at])
                    loss = loss_of(reading.model)(logits if autocast is None else logits.float(), targets)
                    loss.backward()
            except ValueError:  # a single value per channel has no batch statistics
                return {name: torch.zeros_like(value) for name, value in observations(reading)[0].items()}
            optimizer.step()
        if reading.stepwise:
            gain = reading.rate * reading.steps * momentum_gain(reading.momentum, reading.steps, reading.rule)
            decay = 0.0 if reading.adam is not None else reading.weight_decay
            rows.append({n: (start[n] - p.detach()) / gain - decay * start[n] for n, p in parameters.items()})
        else:
            rows.append({n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in parameters.items()})
    return {name: torch.stack([each[name] for each in rows]) for name in reading.weights}


def _optimizer(reading: Reading, parameters: list[Tensor]) -> torch.optim.Optimizer:
    rate, decay, adam = reading.rate, reading.weight_decay, reading.adam
    if adam is None:
        return torch.optim.SGD(parameters, lr=rate, momentum=reading.momentum, weight_decay=decay)
    kind = torch.optim.AdamW if adam.decoupled else torch.optim.Adam
    return kind(parameters, lr=rate, betas=adam.betas, eps=adam.eps, weight_decay=decay)
