"""A federated round: local training and the defense's stages, in order; the tensors after each stage are kept.

input → example → step → (SGD, L times) → client → exchange → server → aggregate"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bench.cell import Federated
from bench.defenses.base import Local, Tensors
from bench.defenses.transforms.rows import norms
from bench.federated.batches import Batches
from bench.federated.stages import DrawKey, Stages
from bench.gradients import example_gradients, group_gradients, one_hot
from bench.points import UPDATE_STAGES, Stage

_FEW = 16  # examples in a batch: with more, and no transform inside a step, only means are computed


@dataclass(frozen=True, slots=True, kw_only=True)
class Taps:
    """Result of a federated round: the tensors after each stage (each place of the defense in the round), where an
    attacker may observe them, and the defense's states after the round."""

    shown: Mapping[Stage, dict[str, Tensor]]
    """Map from stage to tensors, name → (client, *shape); at `aggregate` (*shape). For stage `example`, the gradient of
    each client's first example in step 0."""
    stages: Stages
    """Stages with their states after the round."""


def run_round(
    model: nn.Module,
    weights: Tensors,
    batches: Batches,
    federated: Federated,
    stages: Stages,
    draw_key: DrawKey,
    *,
    classes: int,
    received: Tensors | None = None,
) -> Taps:
    """Run a federated round with a defense for all clients together. Return the tensors after each stage, and the
    defense's next states.

    - `model`: computes the gradients, at `weights` instead of its own parameters.
    - `weights`: the round's initial weights, name → (*shape).
    - `batches`: the clients' data.
    - `federated`: federated setting. FedSGD sends the local step's gradient; FedAvg sends the weight difference w_0 -
      w_L = η Σ g over L steps, with the learning rate η.
    - `stages`: the defense's stages with their states.
    - `draw_key`: key of the defense's random draws.
    - `classes`: number of classes.
    - `received`: initial weights that a server sends to each client, name → (client, *shape); None: `weights` for all
      clients. No transform may then read a round's common weights (`Transform.reads_weights`)."""
    shown: dict[Stage, dict[str, Tensor]] = {}
    common = received is None
    local = {name: value.expand(len(batches.clients), *value.shape) for name, value in weights.items()}
    local |= received or {}
    total: dict[str, Tensor] = {name: torch.zeros_like(value) for name, value in local.items()}
    for step in range(federated.steps):
        now = replace(draw_key, step=step)
        clients, inputs = batches.clients, batches.inputs[:, step]
        targets = one_hot(batches.labels[:, step], classes, inputs.dtype)
        inputs, targets, stages = stages.trained_on(inputs, targets, now, clients, weights=weights)
        here = Local(model=model, weights=local, inputs=inputs, labels=targets.argmax(-1))
        if inputs.shape[1] > _FEW and not stages.has("example") and not stages.has("step"):
            mean, first = _means(here, targets, same=common and step == 0)
        else:
            per_example = _per_example(here, targets, same=common and step == 0)
            per_example, stages = stages.apply("example", per_example, now, clients, weights=weights, local=here)
            mean = {name: value.mean(1) for name, value in per_example.items()}
            remaining = norms(per_example, 2) if stages.has("step") else None
            mean, stages = stages.apply(
                "step", mean, now, clients, norms=remaining, weights=weights, local=here, examples=per_example
            )
            first = {name: value[:, 0] for name, value in per_example.items()}
        if step == 0:
            shown["example"], shown["step"] = first, mean
        total = {name: value + mean[name] for name, value in total.items()}
        local = {name: value - federated.rate * mean[name] for name, value in local.items()}
    unit = federated.unit
    update = {name: unit * value for name, value in total.items()}
    for stage in UPDATE_STAGES:
        update, stages = stages.apply(stage, update, draw_key, batches.clients, weights=weights)
        shown[stage] = update
    mean = {name: value.mean(0) for name, value in update.items()}
    shown["aggregate"], stages = stages.apply("aggregate", mean, draw_key, weights=weights)
    return Taps(shown=shown, stages=stages)


def server_step(weights: Tensors, aggregate: Tensors, federated: Federated) -> dict[str, Tensor]:
    """Return the server's new weights, name → (*shape), from its `weights` w and the `aggregate`, the mean of the
    clients' messages. FedSGD: w minus the mean gradient times the learning rate. FedAvg: w minus the mean weight
    difference."""
    rate = federated.rate if federated.algorithm == "fedsgd" else 1.0
    return {name: value - rate * aggregate[name] for name, value in weights.items()}


def _per_example(local: Local, targets: Tensor, *, same: bool) -> dict[str, Tensor]:
    """Return example gradients, (client, example, *shape), at each client's weights. `targets` (client, example, class)
    are probabilities; `same` is True if all clients have equal weights."""
    if same:
        weights = _of_first(local)
        flat = example_gradients(local.model, weights, local.inputs.flatten(0, 1), targets.flatten(0, 1))
        return {name: value.detach().unflatten(0, local.labels.shape) for name, value in flat.items()}
    parts = [
        example_gradients(local.model, weights, inputs, target)
        for weights, inputs, target in zip(_of_each(local), local.inputs, targets, strict=True)
    ]
    return {name: torch.stack([part[name].detach() for part in parts]) for name in local.weights}


def _means(local: Local, targets: Tensor, *, same: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the clients' mean gradients and the gradients of their first examples, both (client, *shape).  Axes and
    `same` are as in `_per_example`; large batches are much faster this way.
    """
    if same:
        weights, inputs = _of_first(local), local.inputs
        mean = group_gradients(local.model, weights, inputs, targets)
        first = example_gradients(local.model, weights, inputs[:, 0], targets[:, 0])
    else:
        rows = zip(_of_each(local), local.inputs[:, None], targets[:, None], strict=True)
        parts = [group_gradients(local.model, weights, inputs, target) for weights, inputs, target in rows]
        mean = {name: torch.cat([part[name] for part in parts]) for name in local.weights}
        first = {}
    return (
        {name: value.detach() for name, value in mean.items()},
        {name: value.detach() for name, value in first.items()},
    )


def _of_first(local: Local) -> dict[str, Tensor]:
    return {name: value[0] for name, value in local.weights.items()}


def _of_each(local: Local) -> list[dict[str, Tensor]]:
    return [{name: value[client] for name, value in local.weights.items()} for client in range(len(local.inputs))]
