"""Promise: nobody is spared the attacks by saying that coordinates cannot be linked."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from tests.planted import Planted

from bench.contracts.base import ContractBroken, ContractSkipped
from bench.contracts.unlinked import linked, unlinked
from bench.defenses.base import Context, Defense, Tensors, Transform
from bench.defenses.ldp_fl import LdpFl
from bench.defenses.niss import Niss
from bench.defenses.prune import Prune


@dataclass(frozen=True, slots=True)
class _Scale(Transform):
    """All but nothing."""

    unlinks: ClassVar[bool] = True

    def apply(self, tensors: Tensors, context: Context) -> dict[str, torch.Tensor]:
        return {name: 1.0001 * value for name, value in tensors.items()}


@dataclass(frozen=True, slots=True)
class _WholeRows(Transform):
    """Another order of the clients, the same for all coordinates: who sent it is hidden, the vector is not."""

    random: ClassVar[bool] = True
    mixes_clients: ClassVar[bool] = True
    unlinks: ClassVar[bool] = True

    def apply(self, tensors: Tensors, context: Context) -> dict[str, torch.Tensor]:
        first = next(iter(tensors.values()))
        order = context.draws.uniform("order", first).flatten(1)[:, 0].argsort()
        return {name: value[order] for name, value in tensors.items()}


@dataclass(frozen=True, slots=True)
class _TensorByTensor(Transform):
    """An order for each tensor: its coordinates stay together."""

    random: ClassVar[bool] = True
    mixes_clients: ClassVar[bool] = True
    unlinks: ClassVar[bool] = True

    def apply(self, tensors: Tensors, context: Context) -> dict[str, torch.Tensor]:
        return {
            name: value[context.draws.uniform(name, value).flatten(1)[:, 0].argsort()]
            for name, value in tensors.items()
        }


@pytest.mark.parametrize("transform", [_Scale(), _WholeRows(), _TensorByTensor()])
def test_a_claim_that_is_not_kept_is_found(transform: Transform) -> None:
    with pytest.raises(ContractBroken, match="says that it unlinks, and a row's coordinates stay together"):
        unlinked(Planted(stage="exchange", transform=transform))


def test_reports_sent_one_by_one_are_unlinked() -> None:
    unlinked(LdpFl(sending="split"))


@pytest.mark.parametrize("defense", [Prune(), LdpFl(sending="whole")])
def test_who_claims_nothing_is_skipped(defense: Defense) -> None:
    with pytest.raises(ContractSkipped, match="says that it unlinks"):
        unlinked(defense)


@dataclass(frozen=True, slots=True)
class _Ring(Transform):
    """Each client uploads its neighbour's update."""

    mixes_clients: ClassVar[bool] = True

    def apply(self, tensors: Tensors, context: Context) -> dict[str, torch.Tensor]:
        return {name: value.roll(1, 0) for name, value in tensors.items()}


@dataclass(frozen=True, slots=True)
class _Blend(Transform):
    """A little of the neighbours'."""

    mixes_clients: ClassVar[bool] = True

    def apply(self, tensors: Tensors, context: Context) -> dict[str, torch.Tensor]:
        return {name: 0.8 * value + 0.2 * value.roll(1, 0) for name, value in tensors.items()}


def test_another_client_s_update_is_not_a_client_s_own() -> None:
    with pytest.raises(ContractBroken, match="gives a client another's row"):
        linked(Planted(stage="exchange", transform=_Ring()))
    linked(Planted(stage="exchange", transform=_Blend()))
    linked(Niss(shares=2))
