"""The rule σ_0 ≥ Cσ'/S_dyn of Fed-αCDP: its first σ by hand, its ε, and the ids that it leaves alone."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from bench.cell import Federated
from bench.contracts.situations import setting_of
from bench.defenses.accounting.mechanism import Sampling
from bench.defenses.accounting.report import paper_epsilon
from bench.defenses.base import Public, Setting
from bench.defenses.fed_alpha_cdp import FedAlphaCdp
from bench.parameters import values

CLASSES = 4


def _setting(norms: tuple[float, ...], batch: int = 1) -> Setting:
    """A linear layer with zero weights, whose gradient for x is (p - y) xᵀ with uniform p, and public examples of these
    norms."""
    inputs = torch.zeros(len(norms), 5, dtype=torch.float64)
    inputs[:, 2] = torch.tensor(norms, dtype=torch.float64)
    public = Public(
        model=nn.Sequential(nn.Linear(5, CLASSES, bias=False)).double(),
        weights={"0.weight": torch.zeros(CLASSES, 5, dtype=torch.float64)},
        inputs=inputs,
        labels=torch.arange(len(norms)) % CLASSES,
        classes=CLASSES,
    )
    return replace(setting_of(Federated(batch=batch), rounds=20), public=public)


def _size(norm: float) -> float:
    """‖(p - y) xᵀ‖ = ‖x‖ √(1 - 1/classes)."""
    return norm * math.sqrt(1 - 1 / CLASSES)


@pytest.mark.parametrize(
    ("batch", "measure", "size"),
    [
        (1, "max", (_size(0.5) + _size(1.0) + _size(2.0) + 4.0) / 4),  # 8 is clipped to C
        (2, "max", (_size(1.0) + 4.0) / 2),
        (2, "mean-of-largest", (_size(0.5) + _size(1.0) + _size(2.0) + 4.0) / 4),
    ],
)
def test_the_first_sigma_is_of_public_examples_by_hand(batch: int, measure: str, size: float) -> None:
    setting = _setting((0.5, 1.0, 2.0, 8.0), batch)
    defense = FedAlphaCdp(clip=4.0, sigma=1.0, resilient=6.0, measure=measure)  # type: ignore[arg-type]
    assert defense.first(setting) == pytest.approx(4.0 * 6.0 / size, rel=1e-12)


@pytest.mark.parametrize("decay", ["none", "linear", "staircase", "exponential", "cyclic"])
def test_epsilon_is_that_of_the_raised_sigma(decay: str) -> None:
    setting = _setting((1.0,))
    first = 4.0 * 6.0 / _size(1.0)
    ruled = FedAlphaCdp(resilient=6.0, decay=decay).mechanism(setting)  # type: ignore[arg-type]
    plain = FedAlphaCdp(sigma=first, decay=decay).mechanism(setting)  # type: ignore[arg-type]
    assert ruled.sigmas == pytest.approx(plain.sigmas, rel=1e-12) and ruled.sigmas[0] == pytest.approx(first)
    assert ruled.unproved == plain.unproved
    sampling = Sampling(q=0.1, per_round=1, rounds=20)
    assert paper_epsilon(ruled, sampling) == pytest.approx(paper_epsilon(plain, sampling))
    assert paper_epsilon(ruled, sampling) < paper_epsilon(FedAlphaCdp(decay=decay).mechanism(setting), sampling)  # type: ignore[arg-type]
    noise = FedAlphaCdp(resilient=6.0, decay=decay).transforms(setting)["example"][1]  # type: ignore[arg-type]
    assert noise.multiplier(0) == pytest.approx(first)  # type: ignore[attr-defined]


def test_a_larger_sigma_stays_and_a_training_without_public_examples_is_refused() -> None:
    setting = _setting((4.0,))
    assert FedAlphaCdp(sigma=30.0, resilient=6.0).first(setting) == 30.0
    assert FedAlphaCdp().first(replace(setting, public=None)) == 6.0
    with pytest.raises(ValueError, match="measures S_dyn on public examples, and this training has none"):
        FedAlphaCdp(resilient=6.0).transforms(replace(setting, public=None))
    with pytest.raises(ValueError, match="decay=as-published has its own"):
        FedAlphaCdp(resilient=6.0, decay="as-published").transforms(setting)


def test_cells_without_the_rule_keep_their_ids() -> None:
    assert "resilient" not in values(FedAlphaCdp())
    assert values(FedAlphaCdp(resilient=6.0)) == values(FedAlphaCdp()) | {"resilient": 6.0}
