"""Contracts hold for everything registered, and each of them can fail: entries broken on purpose."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import click
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

from bench.attacks.base import Attack, closed_form
from bench.attacks.dlg import Dlg
from bench.cli.check import command
from bench.contracts import attacks, datasets, descriptions
from bench.contracts.base import Contract, ContractBroken, Outcome
from bench.contracts.descriptions import seen_of, unread
from bench.contracts.run import check, check_instance, contracts
from bench.contracts.situations import Situation, situation
from bench.contracts.trials import variants
from bench.datasets import base
from bench.datasets.base import Dataset, Raw
from bench.defenses.base import Context, Defense, Scaling, Setting, Shown, Transform
from bench.defenses.transforms.clip import Clip
from bench.defenses.transforms.mask import KeepRandom
from bench.defenses.transforms.noise import Additive, GaussianNoise
from bench.defenses.transforms.rows import norms, rescaled
from bench.errors import BenchError
from bench.gradients import group_gradients
from bench.kinds.tables import TABLE
from bench.models.base import Model
from bench.parameters import parameter, values
from bench.points import Stage
from bench.registry import entries as registry
from bench.rng import Key
from bench.trip import Budget, Outcomes, Reading, Reconstruction

pytestmark = pytest.mark.long

SMALLER = {  # the promises do not depend on it
    "learned-inverter": {"simulations": 150, "components": 16},
    "token-span": {"starts": 2},
    "token-matching": {"starts": 1},
}
LIKE_CPL = {"compensated-gradinv", "dlg", "idlg", "gradinv", "demix"}  # other parts in the same engine
LIKE_CNN = {"convnet8"}  # more of the same layers
# Contracts left to `tox -e full`: dp-sgd (clip, noise on the step) and fed-sdp (on the server) keep them by default
# for the same transforms; censor runs the model for each draw.  Draws are tested for ldp-fl in tests/test_reports.py,
# for niss in tests/test_shares.py, for qsgd and secure-aggregation in tests/test_compression.py, for priv-unit
# and cldp in tests/test_local_reports.py, for nvflare-svt in tests/test_framework_defenses.py.
OF_DRAWS = {"noise", "law", "draws"}
LATER = dict.fromkeys(
    (
        "adaclip",
        "cldp",
        "cp-sgd",
        "fed-alpha-cdp",
        "fed-cdp",
        "ldp-fl",
        "niss",
        "nvflare-svt",
        "priv-unit",
        "qsgd",
        "quantile",
        "secure-aggregation",
    ),
    OF_DRAWS,
) | {"censor": OF_DRAWS | {"rounds"}}
# All contracts in `tox -e full` only: fed-split is fed-cdp and fed-sdp together, local-dp-mod is fed-sdp with another
# noise (its own figures: tests/test_framework_defenses.py), and the others are gaussian and qsgd with another law or
# norm.
COMBINED = {"fed-split", "laplace", "local-dp-mod", "terngrad"}
SAME_FILES = {"fashion-mnist", "cifar100"}  # the loaders of mnist and cifar10
# Contracts that depend on the choice of parameters; the other contracts concern the class, or all choices together.
OF_A_CHOICE = frozenset(
    {
        "acts",
        "finite",
        "keyed",
        "inputs untouched",
        "alone = in company",
        "originals",
        "bias",
        "noise",
        "norms",
        "description",
    }
)
# If a reading does not determine the draws, no function of reading and truth gives the reading: two draws with the same
# reading of a row have different readings of other rows.  `expected` is compared for these transforms.
EXCEPTIONS = {
    "ChooseByThreshold": "as KeepRandom, whose coordinates are drawn from those above a threshold without noise",
    "KeepRandom": "a mean of masked rows does not show which of them kept a coordinate: 2^rows masks, one figure",
}
# A long attack; cpl keeps the contract by default for the same loop.
UNTIL_LATER = {"map": {each.name for each in contracts("attacks")} - {"any chunk"}}
PART = 1  # choices of a defense's parameters in one test
NEEDS_FILES = {"mnist", "fashion-mnist", "cifar10", "cifar10-10k", "cifar10-mobilenet", "cifar100", "lfw", "adult"}
NEEDS_WEIGHTS = {"minilm", "mobilenet-tail"}  # tests/test_minilm.py and tests/test_datasets.py make small ones
NOT_SHIPPED = {"aptos", "reviews"}  # tests/test_aptos.py and tests/test_reviews.py make files in their layout
NEEDS_A_PATH = {"npz", "folder"}  # one's own data: checked below with a pack made here


def _broken(outcomes: Sequence[Outcome]) -> dict[str, str]:
    found = {outcome.contract.name: outcome.reason for outcome in outcomes if outcome.status == "broken"}
    assert all(reason and "\n" not in reason for reason in found.values()), found
    return found


# ------------------------------------------------------------------ everything registered


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in {*SMALLER, *LIKE_CPL}))
        for name in registry.names("attacks")
    ],
)
def test_registered_attack(name: str) -> None:
    attack = registry.instance("attacks", name, SMALLER.get(name, {}))
    assert _broken(check_instance("attacks", attack, only=UNTIL_LATER.get(name))) == {}


@pytest.mark.slow
def test_map_gets_the_same_for_any_chunk() -> None:
    assert _broken(check_instance("attacks", registry.instance("attacks", "map", {}), only={"any chunk"})) == {}


@pytest.mark.parametrize(
    ("name", "part"),
    [
        pytest.param(name, part, marks=[pytest.mark.slow] * (part > 0 or name in COMBINED))
        for name in registry.names("defenses")
        for part in range(-(-sum(1 for _ in variants(registry.instance("defenses", name, {}))) // PART))
    ],
)
def test_registered_defense_with_each_choice_of_its_parameters(name: str, part: int) -> None:
    """Each with its defaults; the other choices in `tox -e full`."""
    chosen = [*variants(registry.instance("defenses", name, {}))][part * PART :][:PART]
    if part == 0:
        only = {contract.name for contract in contracts("defenses")} - LATER.get(name, set())
        assert _broken(check_instance("defenses", chosen.pop(0), only=only)) == {}
    for variant in chosen:  # with its noise elsewhere, a stage may be left with a bound alone
        found = _broken(check_instance("defenses", variant, only=OF_A_CHOICE))
        assert all(key == "acts" and reason.endswith("a bound never reached") for key, reason in found.items()), (
            values(variant),
            found,
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LATER))
def test_contracts_of_many_draws(name: str) -> None:
    assert _broken(check_instance("defenses", registry.instance("defenses", name, {}), only=LATER[name])) == {}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in LIKE_CNN))
        for name in registry.names("models")
        if name not in NEEDS_WEIGHTS
    ],
)
def test_registered_model(name: str) -> None:
    assert _broken(check("models", name)) == {}


@pytest.mark.parametrize("name", sorted({*registry.names("datasets")} - NEEDS_FILES - NEEDS_A_PATH - NOT_SHIPPED))
def test_registered_data_set(name: str) -> None:
    outcomes = check("datasets", name)
    assert _broken(outcomes) == {}
    assert {outcome.contract.name for outcome in outcomes if outcome.status == "skipped"} <= {"columns"}


@pytest.mark.data
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SAME_FILES)) for name in sorted(NEEDS_FILES)]
)
def test_registered_data_set_with_files(name: str, data_dir: Path) -> None:
    outcomes = check("datasets", name, data_dir=data_dir)
    absent = [one.reason for one in outcomes if one.contract.name == "content" and one.status == "skipped"]
    if absent:
        pytest.skip(absent[0])
    assert _broken(outcomes) == {}


def test_a_pack_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    draw = np.random.default_rng(0)
    np.savez(path, x_train=draw.integers(0, 256, (200, 8, 8), np.uint8), y_train=np.arange(200) % 3)
    outcomes = check("datasets", "npz", {"path": str(path)})
    assert _broken(outcomes) == {}
    assert sum(outcome.status == "ok" for outcome in outcomes) == 8


def test_a_data_set_that_is_not_there_is_skipped_with_the_remedy(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv("BENCH_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    outcomes = check("datasets", "mnist", data_dir=tmp_path)
    assert _broken(outcomes) == {}
    assert all(one.status == "skipped" and "bench data fetch mnist" in one.reason for one in outcomes[1:])


@pytest.mark.parametrize("kind", registry.KINDS)
def test_contracts_have_names_and_promises_of_their_own(kind: str) -> None:
    found = contracts(kind)
    assert len({one.name for one in found}) == len({one.function for one in found}) == len(found)
    assert all(isinstance(one, Contract) and one.promise for one in found)


def test_what_a_choice_can_change_names_contracts() -> None:
    assert {contract.name for contract in contracts("defenses")} > OF_A_CHOICE


def test_a_contract_is_a_plain_function_that_raises() -> None:
    by_name = {one.name: one for one in contracts("defenses")}
    with pytest.raises(ContractBroken, match="changes nothing"):
        by_name["acts"].function(_Defense(stages_=("client",), items=(_Identity(),)))
    assert issubclass(ContractBroken, AssertionError)


@pytest.mark.parametrize("contract", attacks.CONTRACTS, ids=lambda contract: contract.name)
@pytest.mark.parametrize("attack", ["analytic", "cpa", "subspace"])
def test_contracts_hold_where_the_first_layer_is_linear(
    attack: str, contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These attacks refuse the convolutional net of `bench check`; here its contracts read a table."""

    def table(*where: str, **options: Any) -> Situation:
        return situation(*where, **{**options, "kind": TABLE})

    monkeypatch.setattr(attacks, "situation", table)
    contract.function(registry.instance("attacks", attack, {}))


# ------------------------------------------------------------------ defenses broken on purpose


@dataclass(frozen=True, kw_only=True)
class _Defense(Defense):
    """Any items at any stages; `stages` claims the client's."""

    reference = "broken on purpose"
    stages: ClassVar[tuple[Stage, ...]] = ("client",)

    stages_: tuple[Any, ...] = parameter(("client",), "where it really acts", source="ours")
    items: tuple[Any, ...] = parameter((), "what it does there", source="ours")

    def transforms(self, setting: Setting) -> Mapping[Stage, Sequence[Transform]]:
        del setting
        return dict.fromkeys(self.stages_, self.items)


@dataclass(frozen=True)
class _Identity(Transform):
    def apply(self, tensors: Mapping[str, Tensor], context: Context) -> dict[str, Tensor]:
        del context
        return {name: value.clone() for name, value in tensors.items()}


@dataclass(frozen=True)
class _Each(Transform):
    """One function of a tensor, out of place."""

    function: Callable[[Tensor], Tensor]

    def apply(self, tensors: Mapping[str, Tensor], context: Context) -> dict[str, Tensor]:
        del context
        return {name: self.function(value) for name, value in tensors.items()}


@dataclass(frozen=True)
class _Unlike(_Each):
    """Halves, and tells attackers that it leaves gradients as they are."""

    def simulate(
        self, tensors: Mapping[str, Tensor], observed: Mapping[str, Tensor], context: Context
    ) -> dict[str, Tensor]:
        del observed, context
        return dict(tensors)


@dataclass(frozen=True)
class _Drawn(Transform):
    """Draws, and does not say so."""

    random: ClassVar[bool] = False

    def apply(self, tensors: Mapping[str, Tensor], context: Context) -> dict[str, Tensor]:
        return {name: value + context.draws.normal(name, value) for name, value in tensors.items()}


@dataclass(frozen=True)
class _SaysRandom(_Each):
    random: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _OftenKept(KeepRandom):
    """Keeps half of the coordinates, and states four fifths."""

    def outcomes(self, tensors: Mapping[str, Tensor], context: Context) -> Outcomes:
        said = KeepRandom.outcomes(self, tensors, context)
        return replace(
            said, chances={name: torch.stack([0.4 * each[0], 1 - 0.4 * each[0]]) for name, each in said.chances.items()}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeptTwice(KeepRandom):
    """Sends kept coordinates, and states twice their values."""

    def outcomes(self, tensors: Mapping[str, Tensor], context: Context) -> Outcomes:
        said = KeepRandom.outcomes(self, tensors, context)
        return replace(said, values={name: 2 * each for name, each in said.values.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class _TwiceTheNoise(GaussianNoise):
    """Adds a deviation 1.2 times the one it states."""

    def apply(self, tensors: Mapping[str, Tensor], context: Context) -> dict[str, Tensor]:
        return {name: value + 1.2 * context.draws.normal(name, value) for name, value in tensors.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Louder(GaussianNoise):
    """Twice the noise on biases, and states it of none."""

    def apply(self, tensors: Mapping[str, Tensor], context: Context) -> dict[str, Tensor]:
        return {n: v + (2 if "bias" in n else 1) * context.draws.normal(n, v) for n, v in tensors.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shifting(GaussianNoise):
    """Noise of a mean that is not 0."""

    def apply(self, tensors: Mapping[str, Tensor], context: Context) -> dict[str, Tensor]:
        return {n: v + 0.1 + context.draws.normal(n, v) for n, v in tensors.items()}


@dataclass(frozen=True)
class _Hushed(Additive):
    """Adds noise, and states none."""

    def apply(self, tensors: Mapping[str, Tensor], context: Context) -> dict[str, Tensor]:
        return {n: v + context.draws.normal(n, v) for n, v in tensors.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _QuietTraining(GaussianNoise):
    """Noise on every example, but none where a training asks for norms alone."""

    def by_norms(self, norms: Mapping[str, Tensor], context: Context) -> Scaling:
        del norms, context
        return Scaling({})


@dataclass(frozen=True, slots=True, kw_only=True)
class _LooseTraining(Clip):
    """Clips to the bound, and to twice the bound where a training asks for norms alone."""

    def apply(self, tensors: Mapping[str, Tensor], context: Context) -> dict[str, Tensor]:
        return rescaled(tensors, Clip.by_norms(self, norms(tensors, context.lead), context), context)

    def by_norms(self, norms: Mapping[str, Tensor], context: Context) -> Scaling:
        return Clip(bound=2 * float(self.bound) if not callable(self.bound) else 1.0).by_norms(norms, context)


@dataclass(frozen=True)
class _OfTheMean(Transform):
    """A mask of each row, which says that the reading's zeros are every row's: true for one alone."""

    keeps: ClassVar[tuple[Shown, ...]] = ()

    def apply(self, tensors: Mapping[str, Tensor], context: Context) -> dict[str, Tensor]:
        del context
        return {n: torch.where(v > 0, v, torch.zeros_like(v)) for n, v in tensors.items()}

    def expected(
        self, tensors: Mapping[str, Tensor], state: Mapping[str, Tensor], context: Context
    ) -> tuple[dict[str, Tensor], Mapping[str, Tensor]]:
        return {n: v.clone() for n, v in tensors.items()}, state

    def simulate(
        self, tensors: Mapping[str, Tensor], observed: Mapping[str, Tensor], context: Context
    ) -> dict[str, Tensor]:
        return {n: torch.where(observed[n] != 0, v, torch.zeros_like(v)) for n, v in tensors.items()}


@dataclass(frozen=True, kw_only=True)
class _OfExamples(_Defense):
    stages = ("example",)


@dataclass(frozen=True, kw_only=True)
class _Unbiased(_Defense):
    """Says that it is unbiased, and halves."""

    unbiased = True
    stages = ("client",)


@dataclass(frozen=True, kw_only=True)
class _Refusing(_Defense):
    stages = ("client",)

    def transforms(self, setting: Setting) -> Mapping[Stage, Sequence[Transform]]:
        if setting.steps > 1:
            raise ValueError("no\nmore than one step")
        return {"client": (_Each(_half),)}


def _half(value: Tensor) -> Tensor:
    return value / 2


def _global_noise(value: Tensor) -> Tensor:
    return value + torch.randn(value.shape, dtype=value.dtype)


@pytest.mark.parametrize(
    ("contract", "words", "defense"),
    [
        pytest.param("acts", "changes nothing", _Defense(items=(_Identity(),)), id="does nothing"),
        pytest.param("acts", "a bound never reached", _Defense(items=(Clip(bound=1e3),)), id="bound not reached"),
        pytest.param("stages", "no choice", _Defense(stages_=()), id="stage not wired"),
        pytest.param(
            "stages",
            "server, which `stages` does not claim",
            _Defense(stages_=("client", "server"), items=(_Each(_half),)),
            id="stage not claimed",
        ),
        pytest.param(
            "readings",
            "where nothing is claimed",
            _Defense(stages_=("server",), items=(_Each(lambda value: value.mul_(0.5)),)),
            id="earlier point changed",
        ),
        pytest.param("keyed", "one key", _Defense(items=(_Each(_global_noise),)), id="not deterministic"),
        pytest.param("keyed", "depends on the draw", _Defense(items=(_Drawn(),)), id="draws in secret"),
        pytest.param("keyed", "two draws are equal", _Defense(items=(_SaysRandom(_half),)), id="does not draw"),
        pytest.param(
            "alone = in company",
            "client 1",
            _Defense(items=(_Each(lambda value: value - value.mean(0)),)),
            id="looks at its neighbours",
        ),
        pytest.param(
            "inputs untouched",
            "in place",
            _Defense(items=(_Each(lambda value: value.mul_(0.5)),)),
            id="writes its inputs",
        ),
        pytest.param(
            "shapes", "float64", _Defense(items=(_Each(lambda value: value.double() / 2),)), id="another dtype"
        ),
        pytest.param("shapes", "expected", _Defense(items=(_Each(torch.flatten),)), id="another shape"),
        pytest.param(
            "finite", "times 0", _Defense(items=(_Each(lambda value: value / value.norm()),)), id="divides by zero"
        ),
        pytest.param("bias", "unbiased = True", _Unbiased(items=(_Each(_half),)), id="biased in secret"),
        pytest.param("outcomes", "last value comes", _Defense(items=(_OftenKept(share=0.5),)), id="keeps less often"),
        pytest.param("outcomes", "off every possible", _Defense(items=(_KeptTwice(share=0.5),)), id="other values"),
        pytest.param("noise", "stated 1 ", _Defense(items=(_TwiceTheNoise(deviation=1.0),)), id="other variance"),
        pytest.param("noise", "bias has the variance", _Defense(items=(_Louder(deviation=1.0),)), id="louder noise"),
        pytest.param("noise", "has the mean", _Defense(items=(_Shifting(deviation=1.0),)), id="noise with a mean"),
        pytest.param("noise", "stated 0 ", _Defense(items=(_Hushed(),)), id="noise not stated"),
        pytest.param(
            "norms",
            "by_norms adds the variance 0 ",
            _OfExamples(stages_=("example",), items=(_QuietTraining(deviation=1.0),)),
            id="trains without noise",
        ),
        pytest.param(
            "norms",
            "by_norms scales",
            _OfExamples(stages_=("example",), items=(_LooseTraining(bound=0.1),)),
            id="trains with another bound",
        ),
        pytest.param(
            "description",
            "at the truth is off",
            _OfExamples(stages_=("example",), items=(_OfTheMean(),)),
            id="says it of one example alone",
        ),
        pytest.param("description", "at the truth", _Defense(items=(_Unlike(_half),)), id="says what is not so"),
        pytest.param("settings", "not one line", _Refusing(), id="refuses in two lines"),
        pytest.param("transforms", "no Transform", _Defense(items=(_half,)), id="no transform"),
    ],
)
def test_a_broken_defense_is_found(contract: str, words: str, defense: Defense) -> None:
    found = _broken(check_instance("defenses", defense, only={contract}))
    assert words in found[contract], found


def test_what_describes_nothing_is_simulated_by_its_code_and_keeps_the_contract() -> None:
    for function in (_half, torch.round, torch.sign):
        (found,) = check_instance("defenses", _Defense(items=(_Each(function),)), only={"description"})
        assert (found.status, found.reason) == ("ok", "")


@dataclass(frozen=True, kw_only=True)
class _Hum(Transform):
    """Uniform noise with the amplitude of the tensor's mean magnitude: a law that is not Gaussian."""

    random: ClassVar[bool] = True

    def apply(self, tensors: Mapping[str, Tensor], context: Context) -> dict[str, Tensor]:
        return {n: g + self.amplitude(g, context) * (2 * context.draws.uniform(n, g) - 1) for n, g in tensors.items()}

    def amplitude(self, g: Tensor, context: Context) -> Tensor:
        return g.abs().mean(tuple(range(context.lead, g.dim())), keepdim=True)


@dataclass(frozen=True, kw_only=True)
class _HumWithDensity(_Hum):
    def log_density(self, tensors: Mapping[str, Tensor], observed: Mapping[str, Tensor], context: Context) -> Tensor:
        total = torch.zeros(())
        for n, g in tensors.items():
            a = self.amplitude(g, context).flatten(context.lead)[..., 0]
            far = (observed[n] - g).flatten(context.lead).abs().amax(-1)
            total = total - g[0].numel() * a.log() - 1e12 * (far > a * (1 + 1e-5))
        return total


@dataclass(frozen=True, kw_only=True)
class _HumInFull(_HumWithDensity):
    def expected(
        self, tensors: Mapping[str, Tensor], state: Mapping[str, Tensor], context: Context
    ) -> tuple[dict[str, Tensor], Mapping[str, Tensor]]:
        return dict(tensors), state


def test_a_random_defense_without_a_law_is_told_that_shares_are_lower_bounds() -> None:
    (found,) = check_instance("defenses", _Defense(items=(_Hum(),)), only={"noise"})
    assert found.status == "skipped" and "_Hum draws random numbers and states no law" in found.reason
    assert "lower bounds" in found.reason
    found_ = _broken(check_instance("defenses", _Defense(items=(_HumWithDensity(),)), only={"noise"}))
    assert "states a likelihood of what `expected` returns, and no `expected`" in found_["noise"]


@dataclass(frozen=True, kw_only=True)
class _HumWithVariance(_HumInFull):
    share: float = 1.0

    def variance_at(self, tensors: Mapping[str, Tensor], context: Context) -> Mapping[str, Tensor]:
        return {n: self.share * self.amplitude(g, context).square().expand_as(g) / 3 for n, g in tensors.items()}


@dataclass(frozen=True, kw_only=True)
class _HumWithBias(_HumInFull):
    def apply(self, tensors: Mapping[str, Tensor], context: Context) -> dict[str, Tensor]:
        return {n: g + self.amplitude(g, context) * context.draws.uniform(n, g) for n, g in tensors.items()}


@dataclass(frozen=True, kw_only=True)
class _HumWithMean(_Hum):
    expected = _HumInFull.expected


def test_noise_that_depends_on_the_gradient_needs_a_density_or_a_variance() -> None:
    ok: list[_Hum] = [_HumInFull(), _HumWithVariance()]
    wrong: dict[_Hum, str] = {
        _HumWithVariance(share=0.5): "by what passes",
        _HumWithBias(): "has the mean",
        _HumWithMean(): "state `noise`, `variance_at` or `log_density`",
    }
    for transform in ok:
        (seen,) = check_instance("defenses", _Defense(items=(transform,)), only={"noise"})
        assert (seen.status, seen.reason) == ("ok", "")
    for transform, reason in wrong.items():
        broken = _broken(check_instance("defenses", _Defense(items=(transform,)), only={"noise"}))
        assert reason in broken["noise"]


def test_a_density_counts_without_a_stated_variance() -> None:
    """A uniform law has a bounded support, so candidates with a residual beyond the support are excluded."""
    cases = 0
    for one in seen_of(_Defense(items=(_HumInFull(),))):
        if one.said.senders == 1 and one.trial.federated.steps == 1:
            inputs, targets = one.trial.trained_on
            truth, other = (descriptions._described(one, x, targets) for x in (inputs, 1 - inputs))
            true, false = (one.said.log_density(each, one.observed) for each in (truth, other))
            assert true is not None and false is not None
            assert bool((true > -1e11).all()) and bool((false < -1e11).all())
            cases += 1
    assert cases >= 2


@pytest.mark.slow  # that none is missing is a contract of each
def test_the_draws_that_a_reading_does_not_show_are_a_list_with_a_proof_each() -> None:
    found = set()
    for name in registry.names("defenses"):
        for variant in variants(registry.instance("defenses", name, {})):
            found |= {item for one in seen_of(variant) for item in unread(one.said)}
    assert found == set(EXCEPTIONS)
    assert all(EXCEPTIONS.values())


# ------------------------------------------------------------------ attacks broken on purpose


@dataclass(frozen=True, kw_only=True)
class _Attack(Attack):
    """A sound one: the public mean."""

    reference = "broken on purpose"

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        del budget, key
        return closed_form(reading, reading.public_mean.expand(len(reading), reading.examples, *reading.shape))


def _plus(extra: Callable[[Reading, Budget], Tensor | float]) -> type[Attack]:
    """The public mean and something on top."""

    class Plus(_Attack):
        def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
            mean = _Attack().reconstruct(reading, budget, key)
            return replace(mean, inputs=mean.inputs + extra(reading, budget))

    return Plus


def _peek(reading: Reading, _: Budget) -> Tensor | float:
    """Looks for the victim's batch statistics in the module."""
    return next((value.float() for _, value in reading.model.named_buffers()), 0.0)


def _left_over(reading: Reading, _: Budget) -> float:
    """Looks for a gradient left over in the module."""
    first = next(reading.model.parameters())
    return 0.0 if first.grad is None else float(first.grad.mean())


def _poisoned(reading: Reading, _: Budget) -> float:
    """One reading that is no number makes all of them so."""
    return 0.0 * float(torch.stack([value.sum() for value in reading.values.values()]).sum())


def _scribble(reading: Reading, _: Budget) -> float:
    return 0.0 * float(next(iter(reading.values.values())).mul_(0.5).sum())


class _Mumbling(_Attack):
    def refuses(self, reading: Reading) -> str | None:
        return "" if reading.kind == TABLE else None


class _Raising(_Attack):
    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        if reading.labels is None and reading.examples > 2:
            raise RuntimeError("too many\npictures")
        return _Attack().reconstruct(reading, budget, key)


class _OnePicture(_Attack):
    """Forgets that a batch holds several pictures."""

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        return closed_form(reading, reading.public_mean.expand(len(reading), 1, *reading.shape))


class _Spending(Dlg):
    """Twice the budget, and says so."""

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        return Dlg.reconstruct(self, reading, replace(budget, evaluations=2 * budget.evaluations), key)


class _Lying(_Spending):
    """Twice the budget, and says otherwise."""

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        found = _Spending.reconstruct(self, reading, budget, key)
        return replace(found, evaluations=found.evaluations.clamp(max=budget.evaluations), history=())


class _Exact(_Attack):
    """A gradient of grey for each evaluation of the budget, and of no other candidate before."""

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        grey = torch.full((len(reading), reading.examples, *reading.shape), 0.5, dtype=torch.float64)
        targets = torch.full((len(reading), reading.examples, reading.classes), 1 / reading.classes).to(grey)
        weights = {name: value[0] for name, value in reading.weights.items()}
        for _ in range(budget.evaluations):
            group_gradients(reading.model, weights, grey, targets, differentiable=False)
        none = torch.zeros(len(reading), dtype=torch.long)
        return replace(closed_form(reading, grey), evaluations=none + budget.evaluations)


def test_an_attack_that_spends_its_whole_budget_keeps_it() -> None:
    """The bench's own passes, on the first gradient of a model, are not the attack's."""
    attacks.budget(_Exact())


@pytest.mark.parametrize(
    ("contract", "words", "attack"),
    [
        pytest.param("any chunk", "chunk 2 and chunk 32", _plus(lambda _, b: 1e-6 * b.chunk), id="depends on chunk"),
        pytest.param(
            "alone = in company", "alone and in company", _plus(lambda r, _: 1e-6 * len(r)), id="depends on company"
        ),
        pytest.param("reading alone", "noise there", _plus(_peek), id="peeks at buffers"),
        pytest.param("reading alone", "noise there", _plus(_left_over), id="peeks at left-over gradients"),
        pytest.param("keyed", "one key", _plus(lambda *_: float(torch.rand(()))), id="draws by the global seed"),
        pytest.param("finite", "status says ok", _plus(lambda *_: float("nan")), id="no numbers in silence"),
        pytest.param("finite", "a nan reading: reading 0 is not finite", _plus(_poisoned), id="poisons its neighbours"),
        pytest.param("reading untouched", "value 0.weight", _plus(_scribble), id="writes its reading"),
        pytest.param("takes or refuses", "not one line", _Mumbling, id="refuses without a word"),
        pytest.param("takes or refuses", "raises", _Raising, id="raises"),
        pytest.param("repeated labels", "raises", _Raising, id="raises for a batch"),
        pytest.param("takes or refuses", "inputs has shape (3, 1,", _OnePicture, id="one picture of three"),
        pytest.param("budget", "reports 2 evaluations of 1", _Spending, id="exceeds its budget"),
        pytest.param("budget", "makes 2 evaluations of 1", _Lying, id="exceeds it and lies"),
    ],
)
def test_a_broken_attack_is_found(contract: str, words: str, attack: type[Attack]) -> None:
    by_name = {one.name: one for one in contracts("attacks")}
    if attack in (_Spending, _Lying):  # these do attack, which takes time: only the one contract
        with pytest.raises(ContractBroken, match=words):
            by_name[contract].function(attack())
        return
    found = _broken(check_instance("attacks", attack(), only={contract}))
    assert words in found[contract], found


def test_the_sound_attack_under_the_broken_ones_is_sound() -> None:
    assert {outcome.status for outcome in check_instance("attacks", _Attack())} == {"ok"}


def test_an_entry_that_is_no_frozen_dataclass_is_found() -> None:
    class Bare(_Attack):
        reference = ""

    assert "reference" in _broken(check_instance("attacks", Bare(), only={"declared"}))["declared"]

    class Loose(Attack):
        reconstruct = _Attack.reconstruct

    assert "frozen" in _broken(check_instance("attacks", Loose()))["declared"]


# ------------------------------------------------------------------ models broken on purpose


@dataclass(frozen=True, kw_only=True)
class _Model(Model):
    reference = "broken on purpose"
    takes = ("image",)

    extra: ClassVar[Callable[[], nn.Module]] = nn.Identity  # a layer in its middle

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, height, width = shape
        return nn.Sequential(
            nn.Conv2d(channels, 4, 3, padding=1),
            type(self).extra(),
            nn.Sigmoid(),
            nn.Flatten(),
            nn.Linear(4 * height * width, classes),
        )


def _with(extra: Callable[[], nn.Module]) -> type[Model]:
    return type("Extra", (_Model,), {"extra": staticmethod(extra)})


class _Centre(nn.Module):
    """Subtracts the mean of the batch without being a BatchNorm."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class _Cut(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.round()


def _batch_norm_always() -> nn.Module:
    """Batch statistics in eval mode as well."""
    return nn.BatchNorm2d(4, affine=False, track_running_stats=False)


class _Counting(nn.Module):
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        return x


class _Unkeyed(_Model):
    def initial(self, module: nn.Module, seed: int) -> dict[str, Tensor]:
        return {name: value.detach() for name, value in module.named_parameters()}


class _WrongLogits(_Model):
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return _Model.build(self, shape, classes + 1)


class _HalfStarted(_Model):
    def initial(self, module: nn.Module, seed: int) -> dict[str, Tensor]:
        started = Model.initial(self, module, seed)
        return {name: value for name, value in started.items() if "bias" not in name}


@pytest.mark.parametrize(
    ("contract", "words", "model"),
    [
        pytest.param(
            "no batch statistics", "BatchNorm2d", _with(lambda: nn.BatchNorm2d(4, affine=False)), id="BatchNorm"
        ),
        pytest.param("alone = in company", "differ by", _with(_batch_norm_always), id="BatchNorm in eval mode"),
        pytest.param(
            "gradients", "no gradient is one example's", _with(_batch_norm_always), id="BatchNorm's gradients"
        ),
        pytest.param("alone = in company", "differ by", _with(_Centre), id="batch mean"),
        pytest.param("gradients flow", "does not depend", _with(_Cut), id="no derivatives"),
        pytest.param("alone = in company", "buffer 1.seen", _with(_Counting), id="buffers that move"),
        pytest.param("initial weights", "one key", _Unkeyed, id="weights by the global seed"),
        pytest.param("initial weights", "do not fit", _HalfStarted, id="weights missing"),
        pytest.param("builds", "expected (1, 7)", _WrongLogits, id="logits"),
    ],
)
def test_a_broken_model_is_found(contract: str, words: str, model: type[Model]) -> None:
    found = _broken(check_instance("models", model()))
    assert words in found[contract], found


def test_the_sound_model_under_the_broken_ones_is_sound() -> None:
    assert {outcome.status for outcome in check_instance("models", _Model())} == {"ok"}


# ------------------------------------------------------------------ data sets broken on purpose


def _raw(**changed: Any) -> Raw:
    draw = np.random.default_rng(0)
    whole: dict[str, Any] = {
        "train_inputs": draw.random((120, 1, 4, 4), np.float32),
        "train_labels": np.arange(120) % 3,
        "test_inputs": draw.random((30, 1, 4, 4), np.float32),
        "test_labels": np.arange(30) % 3,
        "class_names": ("a", "b", "c"),
    }
    return Raw(**(whole | changed))


@dataclass(frozen=True, kw_only=True)
class _Dataset(Dataset):
    reference = "broken on purpose"
    kind: ClassVar[str] = "image"

    raw: ClassVar[Callable[[], Raw]] = staticmethod(_raw)

    def load(self, folders: tuple[Path, ...]) -> Raw:
        return type(self).raw()


def _of(raw: Callable[[], Raw], kind: str = "image") -> Dataset:
    made: type[Dataset] = type("Changed", (_Dataset,), {"raw": staticmethod(raw), "kind": kind})
    return made()


def _part(rows: Any) -> Raw:
    return _raw(train_inputs=_raw().train_inputs[rows], train_labels=_raw().train_labels[rows])


def _failing() -> Raw:
    raise OSError("the disk is gone")


LEVELS = _raw(train_inputs=np.round(255 * _raw().train_inputs))
SHUFFLED = _of(lambda: _part(np.random.permutation(120)))  # an order of the global seed's


@pytest.mark.parametrize(
    ("contract", "words", "dataset"),
    [
        pytest.param("values", "[0, 1], got 0.0 to 255.0", _of(lambda: LEVELS), id="levels up to 255"),
        pytest.param(
            "classes",
            "no training example of class d",
            _of(lambda: _raw(class_names=("a", "b", "c", "d"))),
            id="a class without examples",
        ),
        pytest.param("order", "train_inputs comes in another order", SHUFFLED, id="another order"),
        pytest.param("content", "two loads hash to", SHUFFLED, id="another content hash"),
        pytest.param("counts", "is empty", _of(lambda: _part(slice(6))), id="an empty split"),
        pytest.param(
            "counts",
            "120 examples and 119 labels",
            _of(lambda: _raw(train_labels=_raw().train_labels[:-1])),
            id="a label short",
        ),
        pytest.param("kind", "cannot be loaded: ", _of(_failing), id="cannot be loaded"),
    ],
)
def test_a_broken_data_set_is_found(contract: str, words: str, dataset: Dataset) -> None:
    found = _broken(check_instance("datasets", dataset))
    assert words in found[contract], found


def test_splits_that_overlap_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    split = base.split

    def overlapping(raw: Raw, **named: Any) -> Any:
        found = split(raw, **named)
        return replace(found, gallery=found.tuning)

    monkeypatch.setattr(datasets, "split", overlapping)
    assert "4 examples are in two splits" in _broken(check_instance("datasets", _Dataset()))["splits"]


def test_a_table_whose_groups_miss_a_column_is_found() -> None:
    flat = replace(_raw(), train_inputs=_raw().train_inputs[:, 0, 0], test_inputs=_raw().test_inputs[:, 0, 0])
    assert "groups hold 0 columns of 4" in _broken(check_instance("datasets", _of(lambda: flat, "table")))["columns"]


# ------------------------------------------------------------------ the command

PLUGIN = '''
from dataclasses import dataclass
from bench.defenses.base import Defense


@dataclass(frozen=True, kw_only=True)
class Promises(Defense):
    """Claims a stage and does nothing."""

    reference = "broken on purpose"
    stages = ("server",)

    def transforms(self, setting):
        return {}
'''


def _run(command_: click.Command, *arguments: str) -> Any:
    return CliRunner().invoke(command_, list(arguments))


def test_bench_check_prints_each_contract_and_exits_with_0() -> None:
    done = _run(command, "none", "--kind", "defenses")
    assert done.exit_code == 0
    assert all(one.name in done.output for one in contracts("defenses"))
    assert "it does not say whether it is unbiased" in " ".join(done.output.split())


def test_bench_check_of_a_broken_plugin_exits_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_added", {})
    path = tmp_path / "promises.py"
    path.write_text(PLUGIN)
    done = _run(command, "promises", "--plugin", str(path), "--json")
    assert done.exit_code == 1
    (entry,) = json.loads(done.output)
    broken = {one["name"]: one["reason"] for one in entry["contracts"] if one["status"] == "broken"}
    assert set(broken) == {"stages"}
    assert "claims stage server" in broken["stages"]


def test_bench_check_takes_parameters(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    draw = np.random.default_rng(0)
    np.savez(path, x_train=draw.random((100, 5), np.float32), y_train=np.arange(100) % 2)
    done = _run(command, "npz", "--set", f"path={path}")
    assert done.exit_code == 0
    assert "8 ok" in done.output or "9 ok" in done.output


@pytest.mark.parametrize("arguments", [("no-such-thing",), ("none", "--set", "strength")])
def test_bench_check_of_a_mistake_is_one_line(arguments: tuple[str, ...]) -> None:
    done = _run(command, *arguments)
    assert isinstance(done.exception, BenchError)
    assert "\n" not in str(done.exception)
