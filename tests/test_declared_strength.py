"""Promise: a defense declares its strength, and a stronger value moves the reading further."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

import pytest
from tests.command import output
from torch import Tensor

from bench.cli.describe import command
from bench.contracts.run import check_instance
from bench.defenses.base import Context, Defense, Setting, StageTransforms, Transform
from bench.defenses.gaussian import Gaussian
from bench.defenses.low_rank import LowRank
from bench.defenses.prune import Prune
from bench.defenses.qsgd import Qsgd
from bench.defenses.strength import Strength, at_strength
from bench.parameters import build, parameter, values
from bench.registry import entries as registry

POINT_LIKE = {"none", "sign", "terngrad", "mixup", "secure-aggregation", "censor"}  # of a single strength


@pytest.mark.parametrize(
    "strength",
    [
        Strength("x", 0.01, 100),
        Strength("x", 0.9, 1e-4),
        Strength("x", 0.1, 0.9999, "log-rest"),
        Strength("x", 10, 99.99, "log-rest", whole=100),
    ],
)
def test_positions_and_values_are_inverse(strength: Strength) -> None:
    assert strength.value(0) == pytest.approx(strength.weak) and strength.value(1) == pytest.approx(strength.strong)
    for position in (0.0, 0.3, 0.5, 1.0):
        assert strength.position(strength.value(position)) == pytest.approx(position, abs=1e-9)


def test_equal_steps_are_equal_factors() -> None:
    assert Strength("sigma", 0.01, 100).value(0.5) == pytest.approx(1)
    assert Strength("share", 0.9, 0.9999, "log-rest").value(1 / 3) == pytest.approx(0.99)


def test_values_outside_the_range_have_positions_outside() -> None:
    sigma, kept, share = Strength("s", 1, 10), Strength("k", 0.9, 0.1), Strength("p", 0.1, 0.99, "log-rest")
    assert sigma.position(100) == pytest.approx(2) and sigma.position(0) == -math.inf
    assert kept.position(1.0) < 0 and kept.position(0) == math.inf
    assert share.position(0) < 0 and share.position(1) == math.inf


@pytest.mark.parametrize(
    ("ends", "words"),
    [((1, 1), "are equal"), ((0, 1), "above 0"), ((1, math.inf), "above 0"), ((math.nan, 1), "above 0")],
)
def test_a_range_off_the_scale_is_refused(ends: tuple[float, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Strength("x", *ends)
    with pytest.raises(ValueError, match="below 1"):
        Strength("x", 0.5, 1.0, "log-rest")


def test_a_defense_at_a_strength_keeps_its_other_parameters() -> None:
    assert values(at_strength(Gaussian(at="example"), 0.6)) == {"at": "example", "variance": pytest.approx(1e-2)}
    assert at_strength(Qsgd(), 0.5) == Qsgd(levels=256)


def test_a_parameter_that_replaces_the_strength_is_refused_by_the_contract_only_for_its_defaults() -> None:
    (outcome,) = check_instance("defenses", LowRank(rank=2), only={"strength"})
    assert outcome.status == "ok"


@pytest.mark.parametrize("name", registry.names("defenses"))
def test_registered_strengths_lie_within_bounds(name: str) -> None:
    entry = registry.load("defenses", name)
    strength = vars(entry).get("strength")
    assert (strength is None) == (name in POINT_LIKE)
    for position in (0.0, 0.5, 1.0) if strength else ():
        build(entry, values(at_strength(entry(), position)), where=name)


@dataclass(frozen=True, kw_only=True)
class _Scale(Transform):
    factor: float

    def apply(self, tensors: Mapping[str, Tensor], context: Context) -> dict[str, Tensor]:
        return {name: self.factor * value for name, value in tensors.items()}


@dataclass(frozen=True, kw_only=True)
class _Shrink(Defense):
    """Multiply the update by 1 - share; `strength` is set by each test."""

    reference = "of a test"
    stages = ("client",)
    strength: ClassVar[Strength | None] = None
    share: float = parameter(0.5, "share taken away", low=0, high=1)
    name: str = parameter("", "no number")

    def transforms(self, setting: Setting) -> StageTransforms:
        return {"client": (_Scale(factor=1 - self.share),)}


@dataclass(frozen=True, kw_only=True)
class _Folded(_Shrink):
    def transforms(self, setting: Setting) -> StageTransforms:
        return {"client": (_Scale(factor=1 - self.share * (1.3 - self.share)),)}


@pytest.mark.parametrize(
    ("kind", "strength", "words"),
    [
        (_Shrink, Strength("share", 0.9, 0.1), "strength share works backwards: the reading moves by 0.9 of its norm"),
        (_Shrink, Strength("share", 0.5, 0.51), "strength share changes little"),
        (_Folded, Strength("share", 0.1, 1.0), "strength share is not monotone"),
        (_Shrink, Strength("shape", 0.1, 1.0), "no numeric parameter of this name"),
        (_Shrink, Strength("name", 0.1, 1.0), "no numeric parameter of this name"),
    ],
)
def test_a_wrong_strength_breaks_the_contract(kind: type[_Shrink], strength: Strength, words: str, monkeypatch) -> None:
    monkeypatch.setattr(kind, "strength", strength)
    (outcome,) = check_instance("defenses", kind(), only={"strength"})
    assert outcome.status == "broken" and words in outcome.reason and "\n" not in outcome.reason, outcome.reason


def test_a_right_strength_passes_and_none_is_skipped(monkeypatch) -> None:
    (outcome,) = check_instance("defenses", _Shrink(), only={"strength"})
    assert outcome.status == "skipped"
    monkeypatch.setattr(_Shrink, "strength", Strength("share", 0.1, 0.99, "log-rest"))
    (outcome,) = check_instance("defenses", _Shrink(), only={"strength"})
    assert outcome.status == "ok", outcome.reason


def test_strengths_are_no_parameters() -> None:
    assert "strength" not in {item.name for item in fields(Prune)}


def test_describe_shows_the_strength() -> None:
    assert "share from 0.1 (weak) to 0.9999 (strong)" in output(command, "prune")
    assert '"strength": null' in output(command, "sign", "--json")
    assert '"scale": "log-rest"' in output(command, "prune", "--json")
