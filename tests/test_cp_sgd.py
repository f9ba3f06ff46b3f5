"""cpSGD: the law of a message, and ε of a sum beside the exact one."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binom, chisquare

from bench.cell import Federated
from bench.contracts.situations import setting_of
from bench.defenses.accounting import binomial
from bench.defenses.base import Context
from bench.defenses.cp_sgd import CpSgd
from bench.defenses.transforms.binomial import BinomialNoise
from bench.federated.draws import KeyedDraws

SETTING = setting_of(Federated(), rounds=3)


def _context(seed: int = 0) -> Context:
    draws = KeyedDraws(seed=seed, fields=(), rows=((0,),))
    return Context(lead=1, stage="client", round=0, step=0, setting=SETTING, draws=draws)


@pytest.mark.parametrize("x", [-0.4, -0.1, 0.03, 0.3])
def test_a_message_has_the_law_that_its_density_states(x: float) -> None:
    """Four values from -.3 to .3 and six flips: ten messages at most, by a chi-squared test of 20 000 draws."""
    transform, count = BinomialNoise(radius=0.3, levels=4, trials=6), 20_000
    given = {"w": torch.full((1, count), x, dtype=torch.float64)}
    sent = transform.apply(given, _context())["w"][0]
    index = (sent + 0.3) / 0.2 + 3
    assert torch.allclose(index, index.round(), atol=1e-9)
    expected, _ = transform.expected(given, {}, _context())
    values = (torch.arange(10, dtype=torch.float64) - 3) * 0.2 - 0.3
    one = {"w": expected["w"][:, :1].expand(10, 1)}
    mass = transform.log_density(one, {"w": values[:, None]}, _context()).exp()
    assert float(mass.sum()) == pytest.approx(1, abs=1e-9)
    assert float(mass @ values) == pytest.approx(float(expected["w"][0, 0]), abs=1e-9)
    variance = float(mass @ values.square() - (mass @ values) ** 2)
    assert variance == pytest.approx(float(transform.variance_at(given, _context())["w"][0, 0]), abs=1e-9)
    seen = np.bincount(index.round().long().numpy(), minlength=10)
    possible = mass.numpy() > 1e-12
    assert not seen[~possible].any()
    assert chisquare(seen[possible], count * mass.numpy()[possible] / mass.numpy()[possible].sum()).pvalue > 1e-4


def _exact(flips: int, change: int, delta: float) -> float:
    """ε at δ of Binomial(N, 1/2) and the same law moved by `change`, by bisection of the excess mass."""
    at = np.arange(-change, flips + change + 1)
    p, q = binom.pmf(at, flips, 0.5), binom.pmf(at - change, flips, 0.5)
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(p - math.exp(middle) * q, 0).sum() > delta else (low, middle)
    return high


@pytest.mark.parametrize("flips", [2_000, 20_000, 200_000])
@pytest.mark.parametrize("change", [1, 5, 40])
def test_epsilon_of_the_theorem_is_above_the_exact_one(flips: int, change: int) -> None:
    stated = binomial.epsilon(flips, 1, (change, change, change), 1e-5)
    exact = _exact(flips, change, 1e-5)
    assert exact <= stated
    classic = change * math.sqrt(2 * math.log(1.25e5)) / math.sqrt(flips / 4)
    assert stated > classic
    if flips == 200_000 and change == 1:
        assert stated == pytest.approx(classic, rel=0.15)  # the Gaussian's, for many flips


def test_too_few_flips_have_no_epsilon() -> None:
    assert math.isinf(binomial.epsilon(1_000, 7_000, (1.0, 1.0, 1.0), 1e-5))  # 250 < 23 ln(7e9)
    assert math.isinf(binomial.epsilon(4_000, 1, (600.0, 600.0, 600.0), 1e-5))  # 1000 < 1200
    assert CpSgd().epsilon(replace(SETTING, public=None)) is None  # no public weights, no number of coordinates


def test_bounds_on_a_rounded_vectors_change_hold() -> None:
    """2000 pairs with 400 coordinates and common random numbers: no change is above its bound at δ = 1e-5."""
    random, size, spacing = np.random.default_rng(0), 400, 0.05
    for distance in (0.01, 0.5, 3.0):
        l1, l2, most = binomial.changes(distance, spacing, size, distance, 1e-5)
        for equal in (True, False):
            direction = np.ones(size) if equal else random.normal(size=size) * (random.random(size) < 0.1)
            move = distance * direction / np.linalg.norm(direction)
            start = random.normal(size=(2000, size))
            uniform = random.random((2000, size))
            moved = np.floor((start + move) / spacing + uniform) - np.floor(start / spacing + uniform)
            assert np.abs(moved).sum(1).max() <= l1 and np.linalg.norm(moved, axis=1).max() <= l2
            assert np.abs(moved).max() <= most
            if equal and distance == 3.0:
                assert np.abs(moved).sum(1).mean() > 0.9 * l1  # the bound is near
