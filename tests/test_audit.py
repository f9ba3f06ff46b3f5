"""Promise: an audit's lower bound of ε holds, finds broken pipelines, and leaves honest pipelines in peace."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import binomtest, norm
from tests import zoo
from tests.zoo import ZOO, Pipeline

from bench.audit import bounds, measure
from bench.audit.foreign import audit, claimed, released
from bench.audit.measure import Measured, Plan, Score
from bench.audit.result import Audit
from bench.audit.scores import Moments, learned
from bench.defenses.accounting import pld
from bench.errors import BenchError

Values = NDArray[np.float64]
DELTA, AUDITS = 1e-5, 200


def test_limits_are_those_of_clopper_and_pearson() -> None:
    low, high = bounds.limits(50, 0.95)
    for count in (0, 1, 7, 25, 49, 50):
        exact = binomtest(count, 50).proportion_ci(0.95, "exact")
        assert (low[count], high[count]) == pytest.approx((exact.low, exact.high), abs=1e-12)


def test_epsilon_of_a_gaussian_mechanism() -> None:
    for mu in (0.3, 1.0, 2.0):
        epsilon = brentq(lambda e, m=mu: _delta_of_gaussian(e, m) - DELTA, 0, 50)
        assert bounds.epsilon_of(mu, DELTA) == pytest.approx(epsilon, rel=1e-6)
    assert bounds.epsilon_of(0.0, DELTA) == 0


def test_the_bound_of_an_event() -> None:
    least, most = np.array([0.5, 0.9]), np.array([0.01, 0.9])
    assert bounds.pure(least, most, 0.1) == pytest.approx([math.log(40), math.log(8 / 9)])
    assert bounds.gaussian(least, most) == pytest.approx([norm.ppf(0.5) - norm.ppf(0.01), 0])


def measured_from(worlds: tuple[Values, Values], plan: Plan, *, score: Score | None = None) -> Measured:
    """The lower bounds from the released values of all runs in the two worlds, (run, value) each."""
    learning = plan.learning(worlds[0].shape[1]) if score is None else 0
    scorer = None
    if score is not None:
        scores = [measure._given(score, values) for values in worlds]
    else:
        moments = (Moments(worlds[0][0]), Moments(worlds[0][0]))
        for world, values in zip(moments, worlds, strict=True):
            world.add(values[:learning])
        scorer = measure._learned(moments, "released")
        scores = [scorer(values[learning:]) for values in worlds]
    return measure._bounds((scores[0], scores[1]), learning, plan, scorer)


def test_the_largest_bound_is_reached_by_separate_worlds() -> None:
    plan = Plan(runs=100)
    worlds = np.zeros((100, 1)), np.ones((100, 1))
    found = measured_from(worlds, plan)
    assert found.epsilon.value == pytest.approx(plan.largest)
    assert plan.largest == pytest.approx(math.log((0.025 ** (1 / 50) - DELTA) / (1 - 0.025 ** (1 / 50))))


# --- coverage and power, on mechanisms with known ε


def _gaussian(world: int, rng: np.random.Generator, runs: int) -> Values:
    return rng.normal(size=(runs, 1)) + world


def _laplace(world: int, rng: np.random.Generator, runs: int) -> Values:
    return rng.laplace(size=(runs, 1)) + world


def _subsampled(world: int, rng: np.random.Generator, runs: int) -> Values:
    return 0.5 * rng.normal(size=(runs, 1)) + world * rng.binomial(1, 0.3, (runs, 1))


def _delta_of_gaussian(epsilon: float, mu: float = 1.0) -> float:
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


def _delta_of_laplace(epsilon: float) -> float:
    return max(0.0, 1 - math.exp((epsilon - 1) / 2))


def _delta_of_subsampled(epsilon: float) -> float:
    """The larger of both directions, by the point where the two densities differ by the factor e^ε."""
    q, sigma, factor = 0.3, 0.5, math.exp(epsilon)

    def cut(ratio: float) -> float:  # where the ratio of the densities, 1 - q + q·exp((2x - 1)/2σ²), is `ratio`
        return sigma**2 * math.log((ratio - 1 + q) / q) + 0.5

    at = cut(factor)
    added = (1 - q) * norm.sf(at / sigma) + q * norm.sf((at - 1) / sigma) - factor * norm.sf(at / sigma)
    if 1 / factor <= 1 - q:
        return float(added)
    at = cut(1 / factor)
    removed = norm.cdf(at / sigma) - factor * ((1 - q) * norm.cdf(at / sigma) + q * norm.cdf((at - 1) / sigma))
    return float(max(added, removed))


@pytest.mark.parametrize(
    ("mechanism", "delta_of"),
    [(_gaussian, _delta_of_gaussian), (_laplace, _delta_of_laplace), (_subsampled, _delta_of_subsampled)],
)
@pytest.mark.parametrize("delta", [DELTA, 0.05])
def test_bounds_hold_in_95_of_100_audits(
    mechanism: Callable[[int, np.random.Generator, int], Values], delta_of: Callable[[float], float], delta: float
) -> None:
    true = brentq(lambda epsilon: delta_of(epsilon) - delta, 0, 30)
    plan = Plan(runs=400, delta=delta)
    kept = sum(_audited(mechanism, plan, seed).epsilon.value <= true for seed in range(AUDITS))
    assert kept >= 0.95 * AUDITS


def _audited(mechanism: Callable[[int, np.random.Generator, int], Values], plan: Plan, seed: int) -> Measured:
    rng = np.random.default_rng(seed)
    return measured_from((mechanism(0, rng, plan.runs), mechanism(1, rng, plan.runs)), plan)


def test_the_gaussian_bound_holds_where_its_assumption_does() -> None:
    plan = Plan(runs=400)
    found = np.array([_audited(_gaussian, plan, seed).mu.value for seed in range(AUDITS)])
    assert (found <= 1).mean() >= 0.95
    assert np.median(found) > 0.5


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
def test_half_of_epsilon_is_found_in_2000_runs(sigma: float) -> None:
    def mechanism(world: int, rng: np.random.Generator, runs: int) -> Values:
        return sigma * rng.normal(size=(runs, 1)) + world

    found = [bounds.epsilon_of(_audited(mechanism, Plan(), seed).mu.value, DELTA) for seed in range(20)]
    assert np.median(found) >= bounds.epsilon_of(1 / sigma, DELTA) / 2


def test_dependent_noise_is_whitened() -> None:
    rng = np.random.default_rng(0)
    worlds = (Moments(np.zeros(2)), Moments(np.zeros(2)))
    for world, moments in enumerate(worlds):
        noise = rng.normal(size=(500, 1))
        moments.add(np.concatenate([noise, noise + 0.1 * world], -1))
    scores = learned(worlds)(np.array([[3.0, 3.0], [3.0, 3.1]]))
    assert scores[1, 0] - scores[0, 0] > 1e3


# --- the zoo


def _of_zoo(pipeline: Pipeline, plan: Plan, seed: int, *, honest: bool) -> Audit:
    rng = np.random.default_rng(seed)
    worlds = (pipeline.many(0, rng, plan.runs, honest), pipeline.many(1, rng, plan.runs, honest))
    found = measured_from(worlds, plan, score=pipeline.score)
    return Audit(
        name=pipeline.fault,
        point="released",
        worlds="",
        stated=None,
        claim=claimed(pipeline.epsilon, pipeline.multiplier, plan.delta),
        delta=plan.delta,
        confidence=plan.confidence,
        runs=plan.runs,
        epsilon=found.epsilon,
        mu=found.mu,
        scores=found.scores,
        seconds=0.0,
    )


@pytest.mark.parametrize("name", ZOO)
def test_broken_pipelines_are_caught(name: str) -> None:
    assert len(ZOO) == 12
    assert _of_zoo(ZOO[name], Plan(runs=5000), 0, honest=False).violated


def test_an_honest_pipeline_is_called_broken_in_5_of_100_audits_at_most() -> None:
    twin, plan = ZOO["half_of_the_sensitivity"], Plan(runs=400)
    assert sum(_of_zoo(twin, plan, seed, honest=True).violated for seed in range(AUDITS)) <= 0.05 * AUDITS


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_every_honest_twin_is_called_broken_in_5_of_100_audits_at_most(name: str) -> None:
    plan = Plan(runs=1000)
    assert sum(_of_zoo(ZOO[name], plan, seed, honest=True).violated for seed in range(AUDITS)) <= 0.05 * AUDITS


def test_claims_of_the_zoo_are_those_of_accountants() -> None:
    shuffled = pld.epsilon({zoo.SHUFFLED_SIGMA: zoo.SHUFFLED}, DELTA, q=1 / zoo.SHUFFLED)
    floored = pld.epsilon({zoo.FLOOR_SIGMA: zoo.FLOOR_STEPS}, DELTA, q=zoo.FLOOR_RATE)
    assert zoo.shuffles.epsilon == pytest.approx(shuffled, abs=0.01)
    assert zoo.rounds_the_expected_size.epsilon == pytest.approx(floored, abs=0.01)
    assert zoo.filters_percentiles.epsilon == pytest.approx(bounds.epsilon_of(1 / zoo.FILTERED_SIGMA, DELTA), abs=0.001)


# --- pipelines of others


def _noised(world: int, seed: int) -> Values:
    return np.random.default_rng(seed).normal(size=2) + world


def test_arrays_in_any_container_give_equal_figures() -> None:
    import torch

    def nested(world: int, seed: int) -> object:
        first, second = _noised(world, seed)
        return {"b": [torch.tensor(second)], "a": float(first)}

    plain, other = (audit(each, runs=200, multiplier=1.0) for each in (_noised, nested))
    assert other.epsilon == plain.epsilon
    assert (plain.violated, plain.as_json()["fault"]) == (False, None)


def test_more_than_the_claim_is_the_fault() -> None:
    found = audit(_noised, runs=2000, multiplier=1.0)  # both values move: μ is √2, not 1
    assert found.as_json()["fault"] == "epsilon-violated"
    assert 1 < found.mu.value < 2**0.5
    assert not audit(_noised, runs=2000, multiplier=0.5**0.5).violated
    assert not audit(_noised, runs=2000).violated  # without a claim
    assert not audit(_noised, runs=2000, epsilon=4.38).violated  # without the trade-off, ε is not reached


@pytest.mark.parametrize(
    ("pipeline", "words"),
    [
        (lambda world, seed: np.zeros(2 + world), r"world 1, seed \d+ releases \(3,\), the first run \(2,\)"),
        (lambda world, seed: {f"w{world}": np.zeros(2)}, r"releases w1 \(2,\), the first run w0 \(2,\)"),
        (lambda world, seed: np.array([1.0, np.nan]), "NaN or infinity in 1 of 2 values"),
        (lambda world, seed: np.ones(3), "all runs of both worlds have the same values"),
        (lambda world, seed: [], "releases no value"),
        (lambda world, seed: "text", "releases a str; return an array"),
        (lambda world, seed: 1 / 0, "world 0, seed .*: ZeroDivisionError"),
    ],
)
def test_pipelines_that_cannot_be_audited_are_refused_in_a_line(
    pipeline: Callable[[int, int], object], words: str
) -> None:
    with pytest.raises(BenchError, match=words) as raised:
        audit(pipeline, runs=100)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"delta": 1.0}, "δ must be at least 0 and below 1"),
        ({"delta": math.nan}, "δ must be"),
        ({"runs": 10}, "10 runs prove no ε above 0 .* take 16 runs or more"),
        ({"runs": 100, "delta": 0.99}, "prove no ε above 0 at δ = 0.99"),
        ({"confidence": 1.0}, "confidence"),
        ({"epsilon": 1.0, "multiplier": 1.0}, "not both"),
        ({"epsilon": -1.0}, "at least 0"),
        ({"multiplier": 0.0}, "above 0"),
        ({"multiplier": 1.0, "delta": 0.0}, "no ε at δ = 0"),
    ],
)
def test_numbers_out_of_range_are_refused(options: dict[str, float], words: str) -> None:
    with pytest.raises(BenchError, match=words):
        audit(_noised, **options)  # type: ignore[arg-type]


def test_a_given_score_is_used_and_may_be_infinite() -> None:
    found = audit(
        lambda world, seed: np.array([float(world)]), runs=50, score=lambda y: math.inf if y[0] else -math.inf
    )
    assert found.scores == ("given score",)
    assert found.epsilon.value == pytest.approx(Plan(runs=50).largest)
    with pytest.raises(BenchError, match="the score is NaN"):
        audit(_noised, runs=50, score=lambda y: math.nan)


def test_memory_does_not_grow_with_runs_and_large_values_keep_digits() -> None:
    run = released(lambda world, seed: 1e8 + np.random.default_rng(seed).normal(size=3))
    moments = Moments(run(0, 0)["released"])
    values = np.stack([run(0, seed)["released"] for seed in range(200)])
    for each in values:
        moments.add(each[None])
    assert moments.covariance == pytest.approx(np.cov(values.T, bias=True), rel=1e-6)
