"""Clients' local training, many at once: L steps at weights of their own, with the defense's stages inside.

This is `bench.federated.pipeline` for when nobody reads: the same steps and stages, no taps, draws from a
stream for each client.  Where every transform at stage `example` follows from norms
(`Transform.by_norms`), no example's gradient is formed for its sake, and independent noise on each of B
examples is drawn once, on their mean, with the variance that the mean of B draws has.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from bench.cell import Federated
from bench.defenses.base import Context, Draws, Local, Stateful
from bench.defenses.transforms.rows import norms, spread
from bench.federated.draws import StreamDraws
from bench.federated.pipeline import Batches
from bench.federated.stacks import stack
from bench.federated.stages import Moment, Stages
from bench.points import Stage

Tensors = Mapping[str, Tensor]


Answer = TypeVar("Answer")


class Gradients(Protocol):
    """The gradients of one local step of many clients, formed as far as they are asked for."""

    def mean(self) -> dict[str, Tensor]: ...
    def each(self) -> dict[str, Tensor]: ...
    def norms(self) -> dict[str, Tensor]: ...
    def weighted(self, factors: Tensors) -> dict[str, Tensor]: ...


class Network(Protocol):
    """What gives every client's gradients at its own weights: name → (client, *shape)."""

    def gradients(self, weights: Tensors, inputs: Tensor, labels: Tensor) -> Gradients: ...


def network(model: nn.Module) -> Network:
    """The fastest exact way there is for this model."""
    return stack(model) or ByFunc(model)


@dataclass(frozen=True, slots=True)
class ByFunc:
    """Any model: `torch.func`'s gradient, mapped over examples and clients."""

    model: nn.Module

    def gradients(self, weights: Tensors, inputs: Tensor, labels: Tensor) -> "Formed":
        def loss(given: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return nn.functional.cross_entropy(functional_call(self.model, given, (x[None],)), y[None])

        of_batch = vmap(grad(loss), in_dims=(None, 0, 0))
        found: dict[str, Tensor] = vmap(of_batch)(dict(weights), inputs, labels)
        return Formed({name: value.detach() for name, value in found.items()})


@dataclass(frozen=True, slots=True)
class Formed:
    """Gradients of each example, formed: name → (client, example, *shape)."""

    found: dict[str, Tensor]

    def mean(self) -> dict[str, Tensor]:
        return {name: value.mean(1) for name, value in self.found.items()}

    def each(self) -> dict[str, Tensor]:
        return self.found

    def norms(self) -> dict[str, Tensor]:
        return norms(self.found, 2)

    def weighted(self, factors: Tensors) -> dict[str, Tensor]:
        return {
            name: torch.einsum("kb,kb...->k...", factors[name], value) / value.shape[1]
            for name, value in self.found.items()
        }


def local_updates(
    of: Network, model: nn.Module, weights: Tensors, batches: Batches, federated: Federated, stages: Stages,
    moment: Moment, draws: Draws,
) -> tuple[dict[str, Tensor], Stages]:  # fmt: skip
    """What these clients would send before stage `client`, name → (client, *shape), and their states after.

    `stages` hold the states of these clients alone (`Stages.of`).
    """
    clients = batches.clients
    local = {n: v.expand(len(clients), *v.shape).clone() for n, v in weights.items()}
    by_norms = follows_from_norms(stages)
    with torch.no_grad():
        for step in range(federated.steps):
            now = replace(moment, step=step)
            found = of.gradients(local, batches.inputs[:, step], batches.labels[:, step])
            if not stages.has("example"):
                mean = found.mean()
                left = found.norms() if stages.has("step") else None
            elif by_norms:
                mean, left, stages = _by_norms(found, stages, now, clients, draws)
            else:
                here = Local(
                    model=model, weights=local, inputs=batches.inputs[:, step], labels=batches.labels[:, step]
                )
                each, stages = stages.apply(
                    "example", found.each(), now, clients, draws, weights=weights, local=here
                )
                # an observer must not change a bit: the sum's own order of adding up
                mean = found.mean() if stages.observing else Formed(each).mean()
                left = Formed(each).norms() if stages.has("step") else None
            mean, stages = stages.apply("step", mean, now, clients, draws, left, weights)
            if federated.algorithm == "fedsgd":
                return mean, stages
            for name, value in local.items():
                value.sub_(mean[name], alpha=federated.rate)
        return {name: weights[name] - value for name, value in local.items()}, stages


def follows_from_norms(stages: Stages) -> bool:
    """Whether all that happens at stage `example` is told from norms, noise last and nothing after it
    asking for the norms that it leaves."""
    transforms = stages.transforms.get("example", ())
    random = [transform.random for transform in transforms]
    if any(random[:-1]) or (any(random) and stages.has("step")):
        return False
    return all(_answers(stages, position) for position in range(len(transforms)))


def _by_norms(
    found: Gradients, stages: Stages, moment: Moment, clients: tuple[int, ...], draws: Draws
) -> tuple[dict[str, Tensor], dict[str, Tensor], Stages]:
    """Stage `example` and the mean after it, with the norms of what the examples then are but for noise."""
    given = left = found.norms()
    factors = {name: torch.ones_like(norm) for name, norm in given.items()}
    deviation: Tensor | float = 0.0
    states = dict(stages.states)
    for position, transform in enumerate(stages.transforms["example"]):
        context = Context(
            lead=2, stage="example", round=moment.round, step=moment.step, setting=stages.setting, draws=draws
        )
        if isinstance(transform, Stateful):
            place: tuple[Stage, int] = ("example", position)
            rows = stages.places(clients)
            state = {key: value[rows] for key, value in states[place].items()}
            told, moved = _sure(transform.update_by_norms(left, state, context))
            states[place] = {k: v.index_copy(0, rows, moved[k]) for k, v in states[place].items()}
        else:
            told = _sure(transform.by_norms(left, context))
        factors = {name: value * told.factors.get(name, 1.0) for name, value in factors.items()}
        left = {name: value * told.factors.get(name, 1.0) for name, value in left.items()}
        deviation = told.deviation
    if stages.observing:
        return found.mean(), given, replace(stages, states=states)
    mean = found.weighted(factors)
    examples = next(iter(given.values())).shape[1]
    of_mean = _of_mean(deviation, examples)
    if isinstance(of_mean, Tensor) or of_mean > 0:
        for name, value in mean.items():
            drawn = draws.normal(name, value)
            if isinstance(of_mean, Tensor):
                value.addcmul_(spread(of_mean, value), drawn)
            else:
                value.add_(drawn, alpha=of_mean)
    return mean, left, replace(stages, states=states)


def _of_mean(deviation: Tensor | float, examples: int) -> Tensor | float:
    """The deviation of the mean of independent noise of `deviation`, a number or (client, example)."""
    if isinstance(deviation, Tensor):
        whole: Tensor = deviation.square().sum(1).sqrt()
        return whole / examples
    return deviation / math.sqrt(examples)


def _sure(answer: Answer | None) -> Answer:
    assert answer is not None  # `follows_from_norms` asked
    return answer


def _answers(stages: Stages, position: int) -> bool:
    """Each transform is asked once, of one client's one example with a gradient of norm 1."""
    transform = stages.transforms["example"][position]
    draws = StreamDraws.of(0, 0, 0, (0,), torch.device("cpu"))
    context = Context(lead=2, stage="example", round=0, step=0, setting=stages.setting, draws=draws)
    one = {"any": torch.ones(1, 1)}
    if isinstance(transform, Stateful):
        state = {key: value[:1] for key, value in stages.states["example", position].items()}
        return transform.update_by_norms(one, state, context) is not None
    return transform.by_norms(one, context) is not None
