"""A server with a row for each candidate: the worst case behind a clip and noise, just below the proved ceiling."""

from functools import cache
from math import exp
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from tests.cells import MEMORY, attack, entry

from bench.answer.context import RunContext
from bench.answer.observation import draw_and_observe
from bench.answer.run import run
from bench.ceilings.by_epsilon import ceiling, exceeded
from bench.cell import AttackCell, Federated, Grants
from bench.defenses.accounting.report import figures
from bench.epsilon import Epsilon
from bench.gradients import example_gradients, one_hot

CANDIDATES, READINGS = 50, 48
CHANCE = 1 / CANDIDATES


def cell(sigma: float, *, server: str = "weights", clip: float = 1.0, draw: int = 0, rows: int = 64) -> AttackCell:
    return attack(
        model=entry("models", "mlp", hidden=(rows,), activation="relu"),
        federated=Federated(clients=100, per_round=2, batch=1),
        point="type-1",
        readings=READINGS,
        attack=entry("attacks", "gallery"),
        knowledge="adaptive",
        grants=Grants(gallery=CANDIDATES, server=server),  # type: ignore[arg-type]
        defense=entry("defenses", "dp-sgd", clip=clip, sigma=sigma),
        draw=draw,
    )


@cache
def named(sigma: float, server: str = "weights", clip: float = 1.0, draws: int = 2) -> tuple[float, int, Epsilon]:
    """The share named, the number of readings, and ε at the tap."""
    hits, spent = [], None
    with TemporaryDirectory() as folder:
        for draw in range(draws):
            result = run(cell(sigma, server=server, clip=clip, draw=draw), RunContext(run=Path(folder)), MEMORY).attack
            assert result is not None
            spent = result.privacy.by("tap")
            hits += [bool(example.named) for reading in result.readings for example in reading.examples]
    assert spent is not None
    return sum(hits) / len(hits), len(hits), spent


def orthogonal(mu: float) -> float:
    """The share that is named among candidates with orthogonal gradients: ∫ φ(z - μ) Φ(z)^(M - 1) dz."""
    return float(quad(lambda z: norm.pdf(z - mu) * norm.cdf(z) ** (CANDIDATES - 1), -9, 14)[0])


@pytest.mark.parametrize(
    ("sigma", "clip", "draws"),
    [(0.5, 1.0, 2), *(pytest.param(*each, 20, marks=pytest.mark.slow) for each in ((0.5, 0.01), (1.0, 100.0)))],
)
def test_the_worst_case_is_tight_and_keeps_its_ceiling(sigma: float, clip: float, draws: int) -> None:
    share, trials, spent = named(sigma, clip=clip, draws=draws)
    limit, form = ceiling(spent, CHANCE), orthogonal(1 / sigma)
    assert limit is not None and not exceeded(share, trials, limit)
    spread = (form * (1 - form) / trials) ** 0.5
    assert abs(share - form) < 3 * spread
    assert (form - CHANCE) / (limit - CHANCE) > 0.8  # of what the ceiling leaves above chance


def test_honest_weights_name_less() -> None:
    assert named(0.5, server="listen")[0] < named(0.5)[0] - 0.1


def test_an_amplified_epsilon_is_refuted_at_the_tap() -> None:
    """A client is sampled with rate 1 %: the server knows who takes part, so sampling hides nothing at the tap.

    By (ε, δ) for a removed row, a share of at most e^ε κ + δ would be named."""
    share, trials, spent = named(0.5)
    amplified = next(each for each in figures(0.5, q=0.01, steps=1, delta=1e-3) if each.convention == "idealised")
    assert amplified.epsilon is not None and spent.epsilon is not None and amplified.epsilon < spent.epsilon
    assert exceeded(share, trials, exp(amplified.epsilon) * CHANCE + amplified.delta)


def test_clipped_gradients_of_candidates_are_orthogonal(tmp_path: Path) -> None:
    reading = draw_and_observe(cell(0.5), RunContext(run=tmp_path), MEMORY).reading
    assert reading.gallery_inputs is not None and reading.gallery_labels is not None
    weights = {name: value[0] for name, value in reading.weights.items()}
    targets = one_hot(reading.gallery_labels, reading.classes, torch.float32)
    each = example_gradients(reading.model, weights, reading.gallery_inputs, targets)
    whole = torch.cat([value.flatten(1) for value in each.values()], 1).double()
    norms = whole.norm(dim=1, keepdim=True)
    unit = whole / norms
    assert float(norms.min()) > 100
    assert float((unit @ unit.T - torch.eye(CANDIDATES)).abs().max()) < 1e-6


def test_too_few_rows_are_not_applicable(tmp_path: Path) -> None:
    record = run(cell(0.5, rows=49), RunContext(run=tmp_path), MEMORY)
    assert (record.status, record.reason) == ("n/a", "it opens a row for each candidate: 50 candidates, 49 rows")
