"""Promise: `bench check` finds a defense whose ε counts a bound that it does not keep, however seldom that shows."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import pytest
import torch

from bench.contracts.base import ContractBroken, ContractSkipped
from bench.contracts.descriptions import noise
from bench.contracts.precision import precision
from bench.contracts.reports import reports
from bench.contracts.sensitivity import sensitivity
from bench.contracts.trials import variants
from bench.defenses.accounting.mechanism import Mechanism, Reports
from bench.defenses.base import AddedNoise, Context, Defense, Setting, StageTransforms, State, Tensors, Transform
from bench.defenses.fed_alpha_cdp import FedAlphaCdp
from bench.defenses.fed_cdp import FedCdp
from bench.defenses.fed_sdp import FedSdp
from bench.defenses.fed_split import FedSplit
from bench.defenses.gaussian import Gaussian
from bench.defenses.ldp_fl import LdpFl
from bench.defenses.transforms.clip import Clip
from bench.defenses.transforms.two_point import TwoPoint
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
    ("defense", "where"), [(_Unclipped(), "example"), (_Faint(at="client"), "client"), (_OneTensorCounted(), "example")]
)
def test_what_is_stated_and_not_kept_is_found(defense: Defense, where: str) -> None:
    with pytest.raises(ContractBroken, match=f"{where}: .* deviations of the noise, and its ε counts"):
        sensitivity(defense)


@dataclass(frozen=True, slots=True)
class _OneDirection(Transform):
    """Noise of the stated deviation at every coordinate, and one normal for all: a public projection removes it."""

    deviation: float
    random: ClassVar[bool] = True

    def apply(self, tensors: Tensors, context: Context) -> dict[str, torch.Tensor]:
        first = next(iter(tensors.values()))
        lead = first.shape[: context.lead]
        one = context.draws.normal("all", first).reshape(*lead, -1)[..., 0]
        return {
            name: value + self.deviation * one.reshape(*lead, *[1] * (value.ndim - len(lead)))
            for name, value in tensors.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankOne(FedCdp):
    def transforms(self, setting: Setting) -> StageTransforms:
        clip, noise = FedCdp.transforms(self, setting)["example"]
        return {"example": (clip, _OneDirection(deviation=self.sigma * self.clip))}


@dataclass(frozen=True, slots=True)
class _FewVectors(Transform):
    """Noise of the stated deviation at every coordinate, one of sixteen vectors that everybody can write down."""

    deviation: float
    random: ClassVar[bool] = True

    def apply(self, tensors: Tensors, context: Context) -> dict[str, torch.Tensor]:
        first = next(iter(tensors.values()))
        lead = first.shape[: context.lead]
        chosen = (context.draws.uniform("which", first).reshape(*lead, -1)[..., 0] * 16).long()
        noised = {}
        for name, value in tensors.items():
            public = torch.randn(
                (16, *value.shape[context.lead :]), generator=torch.Generator().manual_seed(5), dtype=value.dtype
            )
            noised[name] = value + self.deviation * public[chosen]
        return noised


@dataclass(frozen=True, slots=True, kw_only=True)
class _FromAList(FedCdp):
    def transforms(self, setting: Setting) -> StageTransforms:
        clip, noise = FedCdp.transforms(self, setting)["example"]
        return {"example": (clip, _FewVectors(deviation=self.sigma * self.clip))}


@dataclass(frozen=True, slots=True)
class _OnlyTheLargest(Transform):
    """Clips what is a thousand times too large."""

    bound: float

    def apply(self, tensors: Tensors, context: Context) -> dict[str, torch.Tensor]:
        clip = Clip(bound=self.bound, per="flat")
        norm = torch.cat([value.flatten(context.lead) for value in tensors.values()], context.lead).norm(dim=-1)
        far = norm > 1000 * self.bound
        return {
            name: torch.where(far.reshape(*far.shape, *[1] * (value.ndim - context.lead)), after, value)
            for (name, value), after in zip(tensors.items(), clip.apply(tensors, context).values(), strict=True)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _GapClip(FedCdp):
    clipping: Literal["per-tensor", "flat"] = "flat"

    def transforms(self, setting: Setting) -> StageTransforms:
        return {"example": (_OnlyTheLargest(bound=self.clip), FedCdp.transforms(self, setting)["example"][1])}


@dataclass(frozen=True, slots=True, kw_only=True)
class _HonestHereAlone(FedCdp):
    """Counts fifty times the noise in any setting but the one that used to be tried."""

    def mechanism(self, setting: Setting) -> Mechanism:
        honest = FedCdp.mechanism(self, setting)
        more = 1.0 if setting.rounds == 2 else 50.0
        return replace(honest, rows={stage: more * value for stage, value in honest.rows.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReleasesLess(FedSdp):
    """Honest of what each stage shows, and not of the models."""

    def mechanism(self, setting: Setting) -> Mechanism:
        honest = FedSdp.mechanism(self, setting)
        return replace(honest, released=1000 * honest.released)


@pytest.mark.parametrize(
    ("defense", "words"),
    [
        (_ReleasesLess(at="client"), "its ε of released models counts 1e\\+03 σ of noise over the sensitivity"),
        (_RankOne(), "the noise's coordinates depend on one another"),
        (_FromAList(), "a gradient 1 times larger moves what is seen by .*e\\+07 deviations"),
        (_GapClip(), "times larger moves what is seen"),
        (_HonestHereAlone(), "T=100, example: .* deviations of the noise"),
    ],
)
def test_what_an_adversary_found(defense: Defense, words: str) -> None:
    """Each passed every check once."""
    with pytest.raises(ContractBroken, match=words):
        sensitivity(defense)


def test_behind_a_step_that_is_not_linear_no_noise_is_gained() -> None:
    with pytest.raises(
        ContractBroken, match="aggregate: its ε counts more noise than before a step that is not linear"
    ):
        sensitivity(_OthersNoiseCounted())


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


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(registry.names("defenses")))
def test_every_choice_of_what_is_registered_keeps_it(name: str) -> None:
    for variant in variants(registry.instance("defenses", name, {})):
        try:
            sensitivity(variant)
        except ContractSkipped:
            continue


@dataclass(frozen=True, slots=True, kw_only=True)
class _Louder(LdpFl):
    """States half the ε of its reports."""

    def mechanism(self, setting: Setting) -> Reports:
        return Reports(epsilon=self.epsilon / 2, sending=self.sending)


@dataclass(frozen=True, slots=True)
class _WideReport(TwoPoint):
    """Does not clip the weights: one out of range is reported for certain."""

    def apply(self, tensors: Tensors, context: Context) -> dict[str, torch.Tensor]:
        reports = TwoPoint.apply(self, tensors, context)
        return {name: torch.where(tensors[name].abs() > 100, tensors[name], report) for name, report in reports.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unclamped(LdpFl):
    sending: Literal["split", "whole", "named"] = "named"

    def transforms(self, setting: Setting) -> StageTransforms:
        return {"client": (_WideReport(epsilon=self.epsilon, radius=self.radius),)}


@pytest.mark.parametrize("defense", [_Louder(), _Louder(epsilon=0.2), _Unclamped()])
def test_reports_that_tell_more_than_their_epsilon_are_found(defense: Defense) -> None:
    with pytest.raises(ContractBroken, match="reports (high|low) with chance .*; its ε of .* allows a factor"):
        reports(defense)


@pytest.mark.parametrize(
    ("epsilon", "range_"),
    [
        (0.1, "fixed"),
        (1.0, "adaptive"),
        (4.0, "fixed"),
        pytest.param(0.1, "adaptive", marks=pytest.mark.slow),
        pytest.param(1.0, "fixed", marks=pytest.mark.slow),
        pytest.param(4.0, "adaptive", marks=pytest.mark.slow),
    ],
)
def test_honest_reports_keep_their_epsilon(epsilon: float, range_: Literal["adaptive", "fixed"]) -> None:
    reports(LdpFl(epsilon=epsilon, range=range_))


def test_a_defense_without_reports_is_skipped() -> None:
    with pytest.raises(ContractSkipped, match="its reports state no ε"):
        reports(Gaussian())


@dataclass(frozen=True, slots=True)
class _OnlyInDouble(Transform):
    """Noise where contracts look, and none where attackers read."""

    random: ClassVar[bool] = True

    def apply(self, tensors: Tensors, context: Context) -> dict[str, torch.Tensor]:
        first = next(iter(tensors.values()))
        scale = 1.0 if first.dtype == torch.float64 else 0.0
        return {name: value + scale * context.draws.normal(name, value) for name, value in tensors.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Double(FedCdp):
    def transforms(self, setting: Setting) -> StageTransforms:
        return {"client": (_OnlyInDouble(),)}


def test_noise_in_double_precision_alone_is_found() -> None:
    with pytest.raises(ContractBroken, match="client: _OnlyInDouble on float32 and on float64 differ by 1"):
        precision(_Double())
    precision(FedCdp())


@dataclass(frozen=True, slots=True)
class _Cancels(Transform):
    """Noise on each example, centred over the batch: what leaves the client has none."""

    random: ClassVar[bool] = True
    batchwise: ClassVar[bool] = True

    def apply(self, tensors: Tensors, context: Context) -> dict[str, torch.Tensor]:
        noised = {}
        for name, value in tensors.items():
            draw = context.draws.normal(name, value)
            batch = value.shape[1]
            centred = draw - draw.mean(1, keepdim=True)
            noised[name] = value + centred * ((batch / (batch - 1)) ** 0.5 if batch > 1 else 1.0)
        return noised

    def expected(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, torch.Tensor], State]:
        return dict(tensors), state

    def noise(self, context: Context, state: State) -> AddedNoise:
        return AddedNoise(variance=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _InBatch(FedCdp):
    def transforms(self, setting: Setting) -> StageTransforms:
        return {"example": (_Cancels(),)}


def test_noise_that_cancels_in_a_batch_is_found() -> None:
    with pytest.raises(ContractBroken, match="noise on the mean of a batch, .* has the variance"):
        noise(_InBatch())
