"""Local training for many clients together: L steps at each client's weights, with the defense's stages inside.

Steps and stages equal those in `bench.federated.pipeline`, but no tensors are kept for attackers, and each client has a
random stream for its draws.  If the gradients' norms determine every transform at stage `example`
(`Transform.by_norms`), no example gradient is formed.  Independent noise on each of B examples is then drawn once, on
their mean, with the variance for a mean over B draws."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from bench.cell import Federated
from bench.defenses.base import Context, Draws, Local, Scaling, State, Tensors, Transform
from bench.defenses.transforms.rows import broadcast, norms
from bench.federated.batches import Batches
from bench.federated.draws import StreamDraws
from bench.federated.replayed import replayed
from bench.federated.stacks import stack
from bench.federated.stages import DrawKey, Stages
from bench.gradients import batch_loss, example_loss, one_hot
from bench.training import predicts_tokens


class Gradients(Protocol):
    """Gradients of a local step for many clients, in several forms: mean over a batch, per example, norms, and weighted
    mean. Each form is computed only if used."""

    def mean(self) -> dict[str, Tensor]:
        """Return the mean gradient over each client's batch, name → (client, *shape)."""
        ...

    def each(self) -> dict[str, Tensor]:
        """Return the gradient of each example, name → (client, example, *shape)."""
        ...

    def norms(self) -> dict[str, Tensor]:
        """Return the Euclidean norm of each example gradient, per tensor, name → (client, example)."""
        ...

    def weighted(self, factors: Tensors) -> dict[str, Tensor]:
        """Return each client's weighted mean over its example gradients, name → (client, *shape). `factors` are the
        weights of the examples in each tensor, name → (client, example); the sum is divided by the number of
        examples."""
        ...


class Network(Protocol):
    """A model that computes gradients for many clients, each at its own weights."""

    def gradients(self, weights: Tensors, inputs: Tensor, labels: Tensor) -> Gradients:
        """Return the gradients of a local step (cross-entropy) for every client.

        - `weights`: weights of each client, name → (client, *shape).
        - `inputs`: the clients' batches, (client, example, *shape).
        - `labels`: (client, example), or class probabilities (client, example, class)."""
        ...


def network(model: nn.Module) -> Network:
    """Return the faster available form of `model` to compute many clients' gradients: a `Stack` for plain sequences of
    supported layers, otherwise `ByFunc` with `torch.func`."""
    return stack(model) or ByFunc(model)


@dataclass(frozen=True, slots=True)
class ByFunc:
    """Gradients of many clients, for any model. A backward pass per client gives the mean gradients; `torch.func` gives
    the example gradients. It is slower than `Stack`, which supports only plain sequences of layers. A model with the
    attribute `clients_together` is differentiated for all clients in a pass: faster without convolutions."""

    model: nn.Module
    """The model; its own parameters are not used."""

    def gradients(self, weights: Tensors, inputs: Tensor, labels: Tensor) -> "FuncGradients":
        """Return the gradients of a local step for every client, each form computed on first use.

        - `weights`: weights of each client, name → (client, *shape).
        - `inputs`: the clients' batches, (client, example, *shape).
        - `labels`: (client, example), or class probabilities (client, example, class)."""
        return FuncGradients(self.model, dict(weights), inputs, labels)


class FuncGradients:
    """Gradients of a local step for many clients, computed with `torch.func` for any model. Each form (mean, per
    example, …) is computed on first use. In the constructor, `weights` are name → (client, *shape), `inputs` (client,
    example, *shape), and `labels` (client, example) or class probabilities (client, example, class)."""

    def __init__(self, model: nn.Module, weights: dict[str, Tensor], inputs: Tensor, labels: Tensor) -> None:
        self._model, self._weights, self._inputs, self._labels = model, weights, inputs, labels

    def mean(self) -> dict[str, Tensor]:
        """Return the mean gradient over each client's batch, name → (client, *shape)."""
        if getattr(self._model, "clients_together", False) and not predicts_tokens(self._model):
            return self._of_all()
        clients = [self._of_client(n) for n in range(len(self._inputs))]
        return {name: torch.stack([each[name] for each in clients]) for name in self._weights}

    def each(self) -> dict[str, Tensor]:
        """Return the gradient of each example, name → (client, example, *shape)."""
        return self._examples.each()

    def norms(self) -> dict[str, Tensor]:
        """Return the Euclidean norm of each example gradient, per tensor, name → (client, example)."""
        return self._examples.norms()

    def weighted(self, factors: Tensors) -> dict[str, Tensor]:
        """Return each client's weighted mean over its example gradients, name → (client, *shape). `factors` are the
        weights of the examples in each tensor, name → (client, example); the sum is divided by the number of
        examples."""
        return self._examples.weighted(factors)

    @cached_property
    def _examples(self) -> "ExampleGradients":
        of_batch = vmap(grad(example_loss(self._model)), in_dims=(None, 0, 0))
        gradients: dict[str, Tensor] = vmap(of_batch)(self._weights, self._inputs, self._labels)
        return ExampleGradients({name: value.detach() for name, value in gradients.items()})

    def _of_all(self) -> dict[str, Tensor]:
        of_client = grad(batch_loss(self._model))
        gradients: dict[str, Tensor] = vmap(of_client)(self._weights, self._inputs, self._labels)
        return {name: value.detach() for name, value in gradients.items()}

    def _of_client(self, client: int) -> dict[str, Tensor]:
        weights = {name: value[client].detach().requires_grad_() for name, value in self._weights.items()}
        with torch.enable_grad():
            loss = batch_loss(self._model)(weights, self._inputs[client], self._labels[client])
        gradients = torch.autograd.grad(loss, list(weights.values()))
        return dict(zip(weights, gradients, strict=True))


@dataclass(frozen=True, slots=True)
class ExampleGradients:
    """Gradients of a local step for many clients in several forms (mean, norms, …), computed from stored example
    gradients."""

    tensors: dict[str, Tensor]
    """Example gradients, name → (client, example, *shape)."""

    def mean(self) -> dict[str, Tensor]:
        """Return the mean gradient over each client's batch, name → (client, *shape)."""
        return {name: value.mean(1) for name, value in self.tensors.items()}

    def each(self) -> dict[str, Tensor]:
        """Return the gradient of each example, name → (client, example, *shape)."""
        return self.tensors

    def norms(self) -> dict[str, Tensor]:
        """Return the Euclidean norm of each example gradient, per tensor, name → (client, example)."""
        return norms(self.tensors, 2)

    def weighted(self, factors: Tensors) -> dict[str, Tensor]:
        """Return each client's weighted mean over its example gradients, name → (client, *shape). `factors` are the
        weights of the examples in each tensor, name → (client, example); the sum is divided by the number of
        examples."""
        return {
            name: torch.einsum("kb,kb...->k...", factors[name], value) / value.shape[1]
            for name, value in self.tensors.items()
        }


def local_updates(
    net: Network,
    model: nn.Module,
    weights: Tensors,
    batches: Batches,
    federated: Federated,
    stages: Stages,
    draw_key: DrawKey,
    draws: Draws,
    *,
    classes: int,
) -> tuple[dict[str, Tensor], Stages]:
    """Train the round's clients locally, with the defense's transforms inside the steps. Return the updates before
    stage `client` (the first stage after local training), name → (client, *shape), and the defense's stages with their
    next states.

    - `net`: computes the gradients of many clients; `model`: the same model as a module.
    - `weights`: the round's initial weights, name → (*shape).
    - `batches`: the clients' data.
    - `federated`: federated setting.
    - `stages`: the defense, with the states of these clients only (`Stages.of`).
    - `draw_key`, `draws`: key and source of the defense's random numbers.
    - `classes`: number of classes."""
    clients = batches.clients
    local = {n: v.expand(len(clients), *v.shape).clone() for n, v in weights.items()}
    by_norms = follows_from_norms(stages)

    def gradient(inputs: Tensor, labels: Tensor, stages: Stages, step: int) -> tuple[dict[str, Tensor], Stages]:
        now = replace(draw_key, step=step)
        targets = labels
        if stages.has("input"):
            soft = one_hot(labels, classes, inputs.dtype)
            inputs, soft, stages = stages.trained_on(inputs, soft, now, clients, draws, weights)
            if not stages.states_only:
                targets, labels = soft, soft.argmax(-1)
        gradients = net.gradients(local, inputs, targets)
        here = Local(model=model, weights=local, inputs=inputs, labels=labels)
        remaining: dict[str, Tensor] | None = None  # example norms after stage `example`
        seen: dict[str, Tensor] | None = None  # example gradients, if stage `step` reads them
        if not stages.has("example"):
            mean = gradients.mean()
            remaining = gradients.norms() if stages.has("step") else None
            seen = gradients.each() if stages.needs_examples else None
        elif by_norms:
            mean, remaining, stages = _by_norms(gradients, stages, now, clients, draws)
        else:
            each, stages = stages.apply("example", gradients.each(), now, clients, draws, weights=weights, local=here)
            # an observer must not change a bit, so the sum keeps its order of additions
            mean = gradients.mean() if stages.states_only else ExampleGradients(each).mean()
            remaining, seen = (norms(each, 2) if stages.has("step") else None), each
        return stages.apply("step", mean, now, clients, draws, remaining, weights, here, seen)

    def move(inputs: Tensor, labels: Tensor, stages: Stages, step: int) -> Stages:
        mean, stages = gradient(inputs, labels, stages, step)
        for name, value in local.items():
            value.sub_(mean[name], alpha=federated.rate)
        return stages

    with torch.no_grad():
        if federated.algorithm == "fedsgd":
            return gradient(batches.inputs[:, 0], batches.labels[:, 0], stages, 0)
        streams = draws.streams if isinstance(draws, StreamDraws) else ()
        take = replayed(move, stages, federated.steps, batches.inputs.device, streams)
        for step in range(federated.steps):
            stages = take(batches.inputs[:, step], batches.labels[:, step], stages, step)
        return {name: weights[name] - value for name, value in local.items()}, stages


def follows_from_norms(stages: Stages) -> bool:
    """Return whether local training can apply the defense's stage `example` (transforms of single-example gradients)
    from the norms of these gradients only, without the gradients themselves; this saves memory. `stages` is the
    defense. Three conditions must hold:

    - every transform at the stage defines `Transform.update_by_norms`;
    - only the last transform adds noise;
    - no transform at stage `step` reads example gradients or follows such noise."""
    transforms = stages.transforms.get("example", ())
    random = [transform.random for transform in transforms]
    if any(random[:-1]) or (any(random) and stages.has("step")) or stages.needs_examples:
        return False
    # try each transform on a single client and example, with a gradient of norm 1
    draws = StreamDraws.of(0, 0, 0, (0,), torch.device("cpu"))
    context = Context(lead=2, stage="example", round=0, step=0, setting=stages.setting, draws=draws)
    probe = {"any": torch.ones(1, 1)}
    states = [
        {key: value[:1] for key, value in stages.states.get(("example", position), {}).items()}
        for position in range(len(transforms))
    ]
    return all(
        transform.update_by_norms(probe, state, context) is not None
        for transform, state in zip(transforms, states, strict=True)
    )


def _by_norms(
    gradients: Gradients, stages: Stages, draw_key: DrawKey, clients: tuple[int, ...], draws: Draws
) -> tuple[dict[str, Tensor], dict[str, Tensor], Stages]:
    """Run stage `example` as factors on example gradients. Return each client's mean gradient after the stage, name →
    (client, *shape), the norms of its example gradients after clips and before noise, name → (client, example), and
    `stages` with the next states."""
    before = after = gradients.norms()
    factors = {name: torch.ones_like(norm) for name, norm in before.items()}
    deviation: Tensor | float = 0.0
    now, step = draw_key.round, draw_key.step
    context = Context(lead=2, stage="example", round=now, step=step, setting=stages.setting, draws=draws)
    for position, transform in enumerate(stages.transforms["example"]):
        scaling, stages = stages.advance(("example", position), clients, _scaling(transform), after, context)
        factors = {name: value * scaling.factors.get(name, 1.0) for name, value in factors.items()}
        after = {name: value * scaling.factors.get(name, 1.0) for name, value in after.items()}
        deviation = scaling.deviation
    if stages.states_only:
        return gradients.mean(), before, stages
    mean = gradients.weighted(factors)
    examples = next(iter(before.values())).shape[1]
    if isinstance(deviation, Tensor):  # (client, example): independent noise on each example
        of_mean = deviation.square().sum(1).sqrt() / examples
        for name, value in mean.items():
            value.addcmul_(broadcast(of_mean, value), draws.normal(name, value))
    elif deviation > 0:
        for name, value in mean.items():
            value.add_(draws.normal(name, value), alpha=deviation / math.sqrt(examples))
    return mean, after, stages


def _scaling(transform: Transform) -> Callable[[Tensors, State, Context], tuple[Scaling, State]]:
    def update(norms: Tensors, state: State, context: Context) -> tuple[Scaling, State]:
        result = transform.update_by_norms(norms, state, context)
        assert result is not None  # `follows_from_norms`
        return result

    return update
