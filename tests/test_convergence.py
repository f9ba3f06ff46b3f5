"""docs/papers/convergence.md: Risk-balanced §5D, its bound on quadratics in closed form, and its third assumption."""

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import ncx2

from bench.cell import Federated
from bench.contracts.situations import setting_of
from bench.defenses.base import Context
from bench.defenses.transforms.compensate import Compensate
from bench.federated.draws import NoDraws

PAGE = (Path(__file__).parents[1] / "docs" / "papers" / "convergence.md").read_text("utf-8")
SCALES = (0.0, 0.1, 1.0, 10.0)
ROUNDS = (1, 10, 100, 10_000)


def rate(smooth: float, phi: float, psi: float, rounds: int, clients: int) -> float:
    """The paper's η, with L = `smooth`."""
    return float(1 / (2 * smooth + phi * math.sqrt(rounds / clients) + psi ** (2 / 3) * rounds ** (1 / 3)))


def printed(phi: float, psi: float, rounds: int, clients: int) -> float:
    return float(phi / math.sqrt(clients * rounds) + 1 / rounds + (psi / rounds) ** (2 / 3))


def with_constants(gap: float, smooth: float, phi: float, psi: float, rounds: int, clients: int) -> float:
    """The page's bound: `gap` is f(x₀) - min f."""
    noise, errors = phi / math.sqrt(clients * rounds), (psi / rounds) ** (2 / 3)
    return 8 * smooth * gap / rounds + (4 * gap + 2 * smooth) * noise + (4 * gap + 2 * smooth**2) * errors


def mean_square(
    start: float, smooth: float, phi: float, psi: float, rounds: int, clients: int, *, constant: bool
) -> float:
    """Mean over rounds of E f'(x)², for f(x) = Lx²/2, noise of the largest variance φ²/m and E ϑ² = ψ² from round 1 on:
    ϑ = ψ in each round, or independent with mean 0. The moments of y = x + ηϑ of the round before follow by the
    recursion y ← (1 - ηL)y - η²Lϑ + ηζ."""
    eta = rate(smooth, phi, psi, rounds, clients)
    keep = 1 - eta * smooth
    mean, square, total = start, start**2, 0.0
    for round_ in range(rounds):
        error, bias = (psi, psi if constant else 0.0) if round_ else (0.0, 0.0)
        total += smooth**2 * (square + 2 * eta * mean * bias + eta**2 * error**2)
        square = (
            keep**2 * square
            - 2 * keep * eta**2 * smooth * bias * mean
            + (eta**2 * smooth * error) ** 2
            + (eta * phi) ** 2 / clients
        )
        mean = keep * mean - eta**2 * smooth * bias
    return total / rounds


def test_the_moments_are_those_of_simulated_rounds() -> None:
    """x and ϑ by the paper's update rule, 40 000 runs: within five standard errors."""
    source, runs = np.random.default_rng(0), 40_000
    smooth, phi, psi, rounds, clients = 1.5, 2.0, 0.7, 12, 4
    eta = rate(smooth, phi, psi, rounds, clients)
    x, before, squares = np.full(runs, 1.3), np.zeros(runs), np.zeros(runs)
    for _ in range(rounds):
        squares += (smooth * x) ** 2 / rounds
        noise = phi / math.sqrt(clients) * source.standard_normal(runs)
        now = psi * source.choice([-1.0, 1.0], runs)
        x, before = x - eta * (smooth * x - noise + before - now), now
    expected = mean_square(1.3, smooth, phi, psi, rounds, clients, constant=False)
    assert abs(squares.mean() - expected) < 5 * squares.std() / math.sqrt(runs)


def test_the_bound_holds_with_constants_and_not_as_printed() -> None:
    fails, nearest = 0, 0.0
    for smooth, phi, psi, start, rounds, clients, constant in product(
        (0.1, 1.0, 10.0), SCALES, SCALES, (0.1, 1.0, 3.0), (1, 10, 100), (1, 10), (False, True)
    ):
        found = mean_square(start, smooth, phi, psi, rounds, clients, constant=constant)
        bound = with_constants(smooth * start**2 / 2, smooth, phi, psi, rounds, clients)
        assert found <= bound * (1 + 1e-12)
        nearest = max(nearest, found / bound)
        fails += found > printed(phi, psi, rounds, clients)
    assert nearest > 0.1, "a bound of this order is needed"
    assert fails > 0


def test_the_printed_bound_fails_after_one_round() -> None:
    """f(x) = x²/2 from x₀ = 2, without noise, without errors."""
    assert "4 > 1" in PAGE
    assert mean_square(2.0, 1.0, 0.0, 0.0, 1, 1, constant=False) == 4 > printed(0.0, 0.0, 1, 1) == 1


@pytest.mark.parametrize("chance", [1e-2, 1e-6])
def test_a_first_moment_bounds_nothing(chance: float) -> None:
    """ϑ = ±ψ/(2p) with chance p has E|ϑ| = ψ/2, and E ϑ² = ψ²/(4p): f(x) = x²/2 from its minimum, two rounds."""
    psi = 1.0
    eta = rate(1.0, 0.0, psi, 2, 1)
    second = (psi / (2 * chance)) ** 2 * chance
    assert chance * psi / (2 * chance) == psi / 2
    found = eta**2 * second / 2  # x₁ = ηϑ₀
    assert found > printed(0.0, psi, 2, 1) * (chance < 1e-3)
    assert found * chance == pytest.approx(eta**2 * psi**2 / 8), "no bound for all p"


def test_compensation_removes_a_weak_gradient_in_each_round() -> None:
    """A matrix of a column of v rows: its eigenvalue ‖c‖²/v is a noncentral χ². The removed parts add up over rounds,
    so that no ψ bounds ϑ."""
    rows, weak, tolerance, rounds = 1000, 0.1, 0.2, 400
    low, high = ((1 + sign / math.sqrt(rows)) ** 2 * (1 + sign * tolerance) for sign in (-1, 1))
    chance = float(np.diff(ncx2.cdf([rows * low, rows * high], rows, rows * weak**2))[0])
    assert f"{100 * (1 - chance):.0e}".replace("e-0", "e-") in PAGE
    source = torch.Generator().manual_seed(0)
    gradient = torch.full((rows,), weak, dtype=torch.float64)
    compensate = Compensate(variance=1.0, quotient=float(rows), tolerance=tolerance)
    setting = setting_of(Federated())
    context = Context(lead=0, stage="aggregate", round=0, step=0, setting=setting, draws=NoDraws())
    removed = torch.zeros_like(gradient)
    for _ in range(rounds):
        mean = gradient + torch.randn(rows, generator=source, dtype=torch.float64)
        kept = compensate.apply({"a": mean}, context)["a"]
        assert kept.norm() < 1e-9 * mean.norm()
        removed += mean - kept
    along = float(removed @ gradient / gradient.norm()) / rounds
    assert abs(along - float(gradient.norm())) < 5 / math.sqrt(rounds), "ϑ grows by the gradient in a round"


def test_the_page_is_a_page() -> None:
    assert len(PAGE.split()) <= 170
