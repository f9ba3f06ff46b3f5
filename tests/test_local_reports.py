"""PrivUnit and CLDP: no bias or the stated one, lengths, and likelihood ratios within e^ε, in closed form."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import betaln
from scipy.stats import kstest

from bench.cell import Federated
from bench.contracts.situations import setting_of
from bench.defenses.accounting import local
from bench.defenses.base import Context
from bench.defenses.cldp import Cldp
from bench.defenses.priv_unit import PrivUnit
from bench.defenses.transforms.exponential import ExponentialReports
from bench.defenses.transforms.priv_unit import UnitReports, _places, cap_of, log_share
from bench.federated.draws import KeyedDraws

SETTING = setting_of(Federated(), rounds=3)


def _context(seed: int = 0) -> Context:
    draws = KeyedDraws(seed=seed, fields=(), rows=((0,),))
    return Context(lead=1, stage="client", round=0, step=0, setting=SETTING, draws=draws)


# ------------------------------------------------------------------ PrivUnit


@pytest.mark.parametrize(("dimension", "least"), [(2, 0.3), (50, 0.0), (50, 0.9), (7000, 0.05), (7000, 0.6)])
def test_a_caps_share_of_the_sphere(dimension: int, least: float) -> None:
    """The last is e^-1566: only its logarithm is a number."""
    with mpmath.workdps(30):
        known = mpmath.log(
            mpmath.betainc((dimension - 1) / mpmath.mpf(2), 0.5, 0, 1 - mpmath.mpf(least) ** 2, regularized=True) / 2
        )
    assert log_share(dimension, least) == pytest.approx(float(known), rel=1e-9)


@pytest.mark.parametrize("dimension", [2, 20, 7000])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 30.0, 2000.0])
def test_epsilon_is_exact_and_the_mean_is_the_integral(dimension: int, epsilon: float) -> None:
    cap = cap_of(dimension, epsilon)
    high, low = cap.log_inside - cap.log_share, cap.log_outside - cap.log_rest  # log densities
    assert high - low == pytest.approx(epsilon, rel=1e-9) and cap.epsilon == pytest.approx(epsilon, rel=1e-9)
    assert cap.log_share <= math.log(0.5) + 1e-12 and 0 < cap.mean <= 1
    if dimension == 20 and epsilon < 100:
        alpha = (dimension - 1) / 2

        def weighted(t: float) -> float:
            return t * math.exp(
                (alpha - 1) * math.log1p(-t * t) - betaln(0.5, alpha) + (high if t >= cap.least else low)
            )

        parts = quad(weighted, -1, cap.least)[0] + quad(weighted, cap.least, 1)[0]
        assert cap.mean == pytest.approx(parts, rel=1e-6)


def test_reports_have_one_length_the_direction_as_mean_and_the_caps_law() -> None:
    """4000 draws in 12 coordinates, five standard errors."""
    defense = PrivUnit(epsilon=6.0, length=2.0)
    (transform,) = defense.transforms(SETTING)["client"]
    x = torch.arange(1, 13, dtype=torch.float64)
    given = {"a": x[:5].expand(4000, 5), "b": x[5:].reshape(1, 7).expand(4000, 7)}
    sent = transform.apply(given, _context())
    reports, cap = torch.cat([sent["a"], sent["b"]], 1), cap_of(12, 6.0)
    assert torch.allclose(reports.norm(dim=1), torch.full((4000,), 2.0 / cap.mean, dtype=torch.float64), rtol=1e-6)
    expected = transform.expected(given, {}, _context())
    assert expected is not None
    mean = expected[0]
    wanted = 2.0 * x / x.norm()
    assert torch.allclose(torch.cat([mean["a"][0], mean["b"][0]]), wanted)
    assert bool(((reports.mean(0) - wanted).abs() < 5 * reports.std(0) / 4000**0.5).all())
    along = reports @ wanted / (2.0 * 2.0 / cap.mean)
    inside = float((along >= cap.least).double().mean())
    assert abs(inside - cap.inside) < 5 * (cap.inside * (1 - cap.inside) / 4000) ** 0.5
    uniform = torch.randn(40000, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    t = (uniform[:, 0] / uniform.norm(dim=1)).numpy()
    for chosen, known in ((along >= cap.least, t[t >= cap.least]), (along < cap.least, t[t < cap.least])):
        assert kstest(along[chosen].numpy(), known).pvalue > 1e-3


def test_the_density_integrates_to_one_and_differs_by_epsilon() -> None:
    transform = UnitReports(epsilon=3.0, length=1.0)
    uniform = torch.randn(40000, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    candidate = {"w": torch.ones(1, 8, dtype=torch.float64).expand(40000, 8)}
    log = transform.log_density(candidate, {"w": uniform}, _context())
    assert float(log.exp().mean()) == pytest.approx(1.0, abs=5 * float(log.exp().std()) / 200)
    assert float(log.max() - log.min()) == pytest.approx(3.0, rel=1e-9)


def test_places_far_in_the_tail_are_numbers() -> None:
    cap = cap_of(7000, 5000.0)
    places = _places(cap, np.array([0.0, 0.0]), np.array([0.999, 0.0]))
    assert cap.least <= places[0] < places[1] < 1


def test_epsilon_of_priv_unit_is_of_a_message_and_adds_up() -> None:
    reports = PrivUnit(epsilon=6.0).mechanism(SETTING)
    paper, valid = local.released(reports, rounds=3, coordinates=700)
    assert (paper.epsilon, valid.epsilon, valid.delta) == (6.0, 18.0, 0.0)
    assert local.at_tap(reports, coordinates=700, observations=2).epsilon == 12.0


# ------------------------------------------------------------------ CLDP


def _chances(transform: ExponentialReports, x: float) -> torch.Tensor:
    """The probabilities of all reports, by the definition."""
    grid = torch.linspace(-transform.radius, transform.radius, transform.levels, dtype=torch.float64)
    return (-transform.epsilon * (x - grid).abs() / (4 * transform.radius)).softmax(0)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 20.0])
def test_ratios_of_cldp_stay_within_the_distance(epsilon: float) -> None:
    (transform,) = Cldp(epsilon=epsilon, radius=0.5, levels=11).transforms(SETTING)["client"]
    assert isinstance(transform, ExponentialReports)
    xs = np.linspace(-0.5, 0.5, 21)
    logs = torch.stack([_chances(transform, float(x)).log() for x in xs])
    apart = torch.from_numpy(np.abs(xs[:, None] - xs))
    assert bool(((logs[:, None] - logs).amax(2) <= epsilon * apart + 1e-12).all())


@pytest.mark.parametrize("epsilon", [1e-3, 8.0, 1000.0])
@pytest.mark.parametrize("levels", [2, 21])
def test_reports_of_cldp_are_the_inverse_of_the_cumulative_law(epsilon: float, levels: int) -> None:
    """For each draw, the first value whose cumulative probability exceeds the draw; ε = 1000 lets each weight but the
    nearest vanish."""
    transform = ExponentialReports(epsilon=epsilon, radius=0.5, levels=levels)
    draws = torch.linspace(1e-4, 0.9999, 500, dtype=torch.float64)
    for x in (-0.5, -0.31, 0.0, 0.02, 0.499, 0.5):
        wanted = (_chances(transform, x).cumsum(0) <= draws[:, None]).sum(1).clamp(max=levels - 1)
        assert transform._index(torch.full_like(draws, x), draws).tolist() == wanted.tolist()


def test_reports_of_cldp_have_the_stated_law_mean_and_likelihood() -> None:
    """20 000 draws at each of five values, two beyond the range, within five standard errors."""
    transform = ExponentialReports(epsilon=8.0, radius=0.5, levels=6)
    x = torch.tensor([-2.0, -0.33, 0.0, 0.2, 0.9], dtype=torch.float64)
    given = {"w": x.expand(20000, 5)}
    sent = transform.apply(given, _context())["w"]
    mean = transform.expected(given, {}, _context())[0]["w"][0]
    grid = torch.linspace(-0.5, 0.5, 6, dtype=torch.float64)
    for at, value in enumerate(x.clamp(-0.5, 0.5).tolist()):
        chances = _chances(transform, value)
        counts = (sent[:, at, None] - grid).abs().argmin(1).bincount(minlength=6) / 20000
        assert bool(((counts - chances).abs() <= 5 * (chances * (1 - chances) / 20000).sqrt()).all())
        assert float(mean[at]) == pytest.approx(float(chances @ grid), abs=1e-12)
    first = {"w": mean[None]}
    for report in range(6):
        seen = {"w": grid[report].expand(1, 5)}
        wanted = sum(math.log(float(_chances(transform, v)[report])) for v in x.clamp(-0.5, 0.5).tolist())
        assert float(transform.log_likelihood(first, seen, _context())) == pytest.approx(wanted, abs=1e-3)
