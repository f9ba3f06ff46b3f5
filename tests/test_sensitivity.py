"""Promise: `bench check` finds a defense whose ε counts a bound that it does not keep, however seldom that shows."""

from dataclasses import dataclass, replace

import pytest

from bench.contracts.base import ContractBroken, ContractSkipped
from bench.contracts.sensitivity import sensitivity
from bench.defenses.accounting.mechanism import Mechanism
from bench.defenses.base import Defense, Setting, StageTransforms
from bench.defenses.fed_alpha_cdp import FedAlphaCdp
from bench.defenses.fed_cdp import FedCdp
from bench.defenses.fed_sdp import FedSdp
from bench.defenses.fed_split import FedSplit
from bench.defenses.gaussian import Gaussian
from bench.registry import entries as registry


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unclipped(FedCdp):
    """Its bound hardly ever binds, and is not applied."""

    clip: float = 100.0

    def transforms(self, setting: Setting) -> StageTransforms:
        return {"example": FedCdp.transforms(self, setting)["example"][1:]}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Faint(FedSdp):
    """Half of the noise that it states."""

    def transforms(self, setting: Setting) -> StageTransforms:
        return FedSdp(at=self.at, clip=self.clip, sigma=self.sigma / 2, noise=self.noise).transforms(setting)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OneTensorCounted(FedCdp):
    """Clips each tensor by itself, and counts one."""

    def mechanism(self, setting: Setting) -> Mechanism:
        return replace(FedCdp.mechanism(self, setting), per_tensor=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OthersNoiseCounted(FedSplit):
    """Counts the noise of the other clients behind a clipping of their updates, as FedSplit did."""

    def mechanism(self, setting: Setting) -> Mechanism:
        return self._inside().mechanism(setting)


@pytest.mark.parametrize(
    ("defense", "where"),
    [
        (_Unclipped(), "example"),
        (_Faint(at="client"), "client"),
        (_OneTensorCounted(), "example"),
    ],
)
def test_what_is_stated_and_not_kept_is_found(defense: Defense, where: str) -> None:
    with pytest.raises(ContractBroken, match=f"{where}: .* deviations of the noise, and its ε counts"):
        sensitivity(defense)


def test_behind_a_step_that_is_not_linear_no_noise_is_gained() -> None:
    with pytest.raises(
        ContractBroken, match="aggregate: its ε counts more noise than before a step that is not linear"
    ):
        sensitivity(_OthersNoiseCounted())


@pytest.mark.parametrize("name", ["fed-cdp", "fed-sdp", "fed-split", "adaclip", "quantile", "niss"])
def test_what_is_registered_keeps_it(name: str) -> None:
    sensitivity(registry.instance("defenses", name, {}))


def test_the_bound_is_near() -> None:
    """Stated a fifth stronger than it is, Fed-CDP is found: the contract has no room for more."""

    class Bold(FedCdp):
        def mechanism(self, setting: Setting) -> Mechanism:
            honest = FedCdp.mechanism(self, setting)
            return replace(honest, rows={stage: 1.2 * value for stage, value in honest.rows.items()})

    with pytest.raises(ContractBroken, match="deviations of the noise"):
        sensitivity(Bold(clipping="flat"))


@pytest.mark.parametrize("defense", [Gaussian(), FedAlphaCdp(), FedCdp(sigma=0.0)])
def test_without_a_gaussian_epsilon_it_is_skipped(defense: Defense) -> None:
    with pytest.raises(ContractSkipped, match="states no ε"):
        sensitivity(defense)
