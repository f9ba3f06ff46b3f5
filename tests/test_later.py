"""Promise: a defense is found out that protects the round that is attacked, and not the training."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from tests.planted import Planted

from bench.contracts.base import ContractBroken
from bench.contracts.later import rounds, training_draws
from bench.defenses.base import Context, Defense, Shapes, State, Tensors, Transform
from bench.defenses.fed_alpha_cdp import FedAlphaCdp
from bench.defenses.fed_cdp import FedCdp
from bench.defenses.low_rank import LowRank
from bench.federated.draws import KeyedDraws


def noisy(tensors: Tensors, context: Context, deviation: float) -> dict[str, torch.Tensor]:
    return {name: value + deviation * context.draws.normal(name, value) for name, value in tensors.items()}


@dataclass(frozen=True, slots=True)
class _FirstRound(Transform):
    """Noise in round 0 alone."""

    random = True

    def apply(self, tensors: Tensors, context: Context) -> dict[str, torch.Tensor]:
        return noisy(tensors, context, 1.0 if context.round == 0 else 0.0)


@dataclass(frozen=True, slots=True)
class _Fading(Transform):
    """Noise that no mechanism says falls."""

    random = True

    def apply(self, tensors: Tensors, context: Context) -> dict[str, torch.Tensor]:
        return noisy(tensors, context, 0.97**context.round)


@dataclass(frozen=True, slots=True)
class _Cyclic(Transform):
    """None in rounds 10 and 20 of thirty."""

    random = True

    def apply(self, tensors: Tensors, context: Context) -> dict[str, torch.Tensor]:
        return noisy(tensors, context, math.cos(math.pi * context.round / 20))


@dataclass(frozen=True, slots=True)
class _Relaxing(Transform):
    """A pruning that its state relaxes: the round's number says nothing."""

    def initial(self, shapes: Shapes) -> State:
        return {"share": torch.tensor(0.9)}

    def update(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, torch.Tensor], State]:
        return {name: (1 - state["share"]) * value for name, value in tensors.items()}, {"share": state["share"] / 3}


@dataclass(frozen=True, slots=True)
class _WhenAttacked(Transform):
    """Tells an attacked reading from a training by the type of its draws."""

    random = True

    def apply(self, tensors: Tensors, context: Context) -> dict[str, torch.Tensor]:
        return noisy(tensors, context, 1.0 if isinstance(context.draws, KeyedDraws) else 0.1)


@dataclass(frozen=True, slots=True)
class _MaskWhenAttacked(Transform):
    """The same without noise."""

    def apply(self, tensors: Tensors, context: Context) -> dict[str, torch.Tensor]:
        share = 0.0 if isinstance(context.draws, KeyedDraws) else 1.0
        return {name: share * value for name, value in tensors.items()}


@pytest.mark.parametrize(
    ("transform", "contract", "words"),
    [
        (_FirstRound(), rounds, "in round 1 _FirstRound changes its input by 0"),
        (_Fading(), rounds, "in round 12 _Fading"),
        (_Cyclic(), rounds, "_Cyclic changes its input by"),
        (_Relaxing(), rounds, "in round 1 _Relaxing"),
        (_WhenAttacked(), training_draws, "mean square is another with a training's draws"),
        (_MaskWhenAttacked(), training_draws, "gives another output with a training's draws"),
    ],
)
def test_protection_of_the_attacked_round_alone_is_found(
    transform: Transform, contract: Callable[[Defense], None], words: str
) -> None:
    with pytest.raises(ContractBroken, match=words):
        contract(Planted(transform=transform))


@pytest.mark.parametrize("contract", [rounds, training_draws])
@pytest.mark.parametrize(
    "defense",
    [FedCdp(), FedAlphaCdp(sigma=15.0, decay="linear"), FedAlphaCdp(decay="as-published", by="step"), LowRank()],
)
def test_a_schedule_that_is_stated_is_taken(defense: Defense, contract: Callable[[Defense], None]) -> None:
    contract(defense)
