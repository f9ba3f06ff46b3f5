"""Promise: intervals hold what they say, in closed form and over simulated trials."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from bench.scoring.intervals import (
    cluster_bootstrap,
    clustered_share,
    effective_trials,
    mcnemar,
    paired_difference,
    simultaneous,
    stratified_change,
    stratified_difference,
    stratified_share,
    wilson,
)

steady = settings(derandomize=True, database=None, deadline=None, max_examples=100)
COUNTS = st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@steady
@given(COUNTS, st.sampled_from([0.9, 0.95, 0.99]))
def test_wilson_equals_scipy(count, level):
    successes, trials = count
    low, high = wilson(successes, trials, level)
    assert (low, high) == pytest.approx(binomtest(successes, trials).proportion_ci(level, method="wilson"), abs=1e-9)
    assert 0 <= low <= successes / trials <= high <= 1


def test_wilson_by_hand():
    # z² = 3.8415: high end for 0 of 10 is z²/(10 + z²)
    low, high = wilson(0, 10)
    assert low == 0
    assert high == pytest.approx(3.841459 / 13.841459, abs=1e-6)
    assert wilson(10, 10) == pytest.approx((1 - high, 1))
    assert wilson(0, 0) == (0, 1)


def test_coverage_of_wilson_over_all_outcomes():
    """Summed over the binomial it is .95 ± .01 on the average."""
    shares = np.linspace(0.02, 0.98, 49)
    chances = binom.pmf(np.arange(65)[:, None], 64, shares)
    low, high = np.array([wilson(k, 64) for k in range(65)]).T
    covered = (chances * ((low[:, None] <= shares) & (shares <= high[:, None]))).sum(axis=0)
    assert covered.min() >= 0.89 and 0.945 <= covered.mean() <= 0.96


def test_impossible_counts_and_levels_are_refused():
    with pytest.raises(ValueError, match="expected between 0 and 3 successes, got 4"):
        wilson(4, 3)
    with pytest.raises(ValueError, match="level must lie between"):
        wilson(1, 3, 1.0)


def test_simultaneous_level():
    assert simultaneous(1) == pytest.approx(0.95)
    assert simultaneous(4) == pytest.approx(1 - 0.05 / 4)
    with pytest.raises(ValueError, match="at least one"):
        simultaneous(0)


def test_worst_of_several_is_covered_at_the_simultaneous_level():
    """Four settings that leak alike: all four intervals hold at once in ≥ .95 of 2000 trials (± .01)."""
    hits = np.random.default_rng(0).binomial(64, 0.3, (2000, 4))
    table = np.array([wilson(k, 64, simultaneous(4)) for k in range(65)])
    inside = (table[hits, 0] <= 0.3) & (table[hits, 1] >= 0.3)
    assert inside.all(axis=1).mean() >= 0.94


def _clustered(rng, clusters, size):
    values = rng.standard_normal((clusters, 1)) + rng.standard_normal((clusters, size))
    return values.ravel(), np.repeat(np.arange(clusters), size)


@pytest.mark.parametrize(("clusters", "least", "most"), [(4, 0.83, 0.91), (8, 0.91, 0.97), (16, 0.925, 0.98)])
def test_coverage_of_the_cluster_bootstrap(clusters, least, most):
    """400 trials: the coverage's standard error is .011 to .017."""
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(400):
        low, high = cluster_bootstrap(*_clustered(rng, clusters, 10), draws=1000)
        held += low <= 0 <= high
    assert least <= held / 400 <= most


def test_pooling_correlated_pictures_would_be_too_sure():
    rng = np.random.default_rng(2)
    leaks = np.repeat(rng.random((8, 1)) < 0.5, 16, axis=1).ravel()
    readings = np.repeat(np.arange(8), 16)
    low, high = clustered_share(leaks, readings)
    pooled = wilson(leaks.sum(), leaks.size)
    assert high - low > 2 * (pooled[1] - pooled[0])
    assert effective_trials(leaks, readings) == 8


def test_effective_trials_by_hand():
    """Where the readings' sums agree nothing is known of how they vary; sums 2 and 0 of 2 are two trials.  2, 1, 1, 0:
    (1 + 0 + 0 + 1) · 4/3 / 64 = 1/24, and .25 over that is 6."""
    assert effective_trials([1, 0, 1, 0], [0, 0, 1, 1]) == 2
    assert effective_trials([1, 1, 0, 0], [0, 0, 1, 1]) == 2
    assert effective_trials([1, 1, 1, 0, 0, 1, 0, 0], [0, 0, 1, 1, 2, 2, 3, 3]) == pytest.approx(6)
    assert effective_trials(np.zeros(384), np.repeat(np.arange(64), 6)) == 64


SETTINGS = [  # seeds, readings a seed, examples a reading, whether these agree, deviation of the seeds' log odds, share
    (1, 64, 6, 1, 0.0, 0.02),
    (1, 64, 6, 1, 0.0, 0.1),
    (1, 64, 6, 1, 0.0, 0.5),
    (1, 64, 6, 0, 0.0, 0.1),
    (1, 16, 6, 0.5, 0.0, 0.9),
    (4, 8, 6, 1, 0.0, 0.02),
    (4, 16, 6, 1, 0.0, 0.1),
    (4, 16, 1, 0, 1.0, 0.1),
    (4, 8, 6, 0, 1.0, 0.1),
    (4, 16, 6, 1, 1.0, 0.5),
    (4, 64, 1, 0, 1.0, 0.9),
    (8, 8, 3, 0.5, 1.0, 0.5),
]


@pytest.mark.parametrize(("seeds", "readings", "examples", "agree", "deviation", "share"), SETTINGS)
def test_coverage_of_a_clustered_share(seeds, readings, examples, agree, deviation, share):
    """1000 trials: the coverage's standard error is .008 at .93."""
    rng = np.random.default_rng(5)
    odds = np.log(share / (1 - share))
    truth = (1 / (1 + np.exp(-odds - deviation * rng.standard_normal(1_000_000)))).mean()
    shape = (seeds, readings, examples)
    seed, reading, _ = (axis.ravel() for axis in np.indices(shape))
    held = 0
    for _ in range(1000):
        rate = 1 / (1 + np.exp(-odds - deviation * rng.standard_normal((seeds, 1, 1))))
        together, alone = rng.random((seeds, readings, 1)) < rate, rng.random(shape) < rate
        leaks = np.where(rng.random(shape) < agree, together, alone).ravel()
        low, high = clustered_share(leaks, reading + 1000 * seed, seed if seeds > 1 else None)
        held += low <= truth <= high
    assert held / 1000 >= 0.92


def test_the_bootstrap_is_keyed_and_blind_to_order_and_names():
    values, names = _clustered(np.random.default_rng(3), 6, 5)
    found = cluster_bootstrap(values, names)
    assert found == cluster_bootstrap(values, names)
    assert found != cluster_bootstrap(values, names, seed=1)
    shuffle = np.random.default_rng(4).permutation(30)
    assert found == pytest.approx(cluster_bootstrap(values[shuffle], names[shuffle] * 7 + 3))
    assert found[0] < values.mean() < found[1]


def test_agreement_of_all_seeds_is_not_certainty():
    names = np.repeat(np.arange(4), 16)
    assert cluster_bootstrap(np.zeros(64), names) == (0, 0)
    readings = np.arange(64)
    assert clustered_share(np.zeros(64), readings, names) == wilson(0, 64)
    assert clustered_share(np.ones(64), readings, names) == wilson(64, 64)
    assert clustered_share(np.zeros(64), readings // 2, names) == wilson(0, 32)  # 32 readings of two


def test_one_cluster_is_refused():
    with pytest.raises(ValueError, match="at least two clusters, got 1; use wilson"):
        cluster_bootstrap([0, 1], [5, 5])


@steady
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=80))
def test_paired_is_antisymmetric_and_holds_its_difference(rows):
    a, b = np.array(rows).T
    difference, low, high = paired_difference(a, b)
    assert difference == pytest.approx(a.mean() - b.mean())
    assert -1 <= low <= high <= 1
    assert paired_difference(b, a) == pytest.approx((-difference, -high, -low))
    assert 0 <= mcnemar(a, b) <= 1
    assert mcnemar(a, b) == pytest.approx(mcnemar(b, a))


def test_paired_by_hand():
    a = np.array([True] * 30 + [False] * 70)
    b = np.array([True] * 10 + [False] * 90)
    difference, low, high = paired_difference(a, b)  # n10 = 20, n01 = 0
    assert difference == pytest.approx(0.2)
    half = 1.959964 * np.sqrt(21 - 20**2 / 102) / 102
    assert (low, high) == pytest.approx((20 / 102 - half, 20 / 102 + half), abs=1e-6)
    assert mcnemar(a, b) == pytest.approx(2 * 0.5**20)


def test_pairing_sees_what_two_separate_intervals_do_not():
    rng = np.random.default_rng(0)
    a = rng.random(200) < 0.5
    b = a & (rng.random(200) > 0.18)
    assert wilson(b.sum(), 200)[1] > wilson(a.sum(), 200)[0]
    assert paired_difference(a, b)[1] > 0


def test_equal_cells_are_not_different_and_not_certain():
    a = np.zeros(20, bool)
    difference, low, high = paired_difference(a, a)
    assert difference == 0
    assert low < 0 < high
    assert mcnemar(a, a) == 1


def test_coverage_of_paired():
    """2000 trials of 64 pairs: .95 within .02, and called different where there is none in ≤ .065."""
    rng = np.random.default_rng(5)
    base = rng.random((2000, 64))
    for first, second in (((0.0, 0.5), (0.1, 0.45)), ((0.1, 0.5), (0.3, 0.7))):
        a, b = ((base >= low) & (base < high) for low, high in (first, second))
        truth = (first[1] - first[0]) - (second[1] - second[0])
        held = np.mean([low <= truth <= high for _, low, high in map(paired_difference, a, b)])
        assert 0.93 <= held <= 0.985


def test_paired_over_seeds_is_never_surer_than_over_pictures():
    rng = np.random.default_rng(6)
    names = np.repeat(np.arange(6), 20)
    a, b = rng.random(120) < 0.5, rng.random(120) < 0.3
    _, low, high = paired_difference(a, b)
    _, wide_low, wide_high = paired_difference(a, b, clusters=names)
    assert wide_low <= low
    assert wide_high >= high


def test_paired_refuses_what_is_not_a_pair():
    with pytest.raises(ValueError, match="same examples"):
        paired_difference(np.zeros(3, bool), np.zeros(4, bool))
    with pytest.raises(ValueError, match="as booleans"):
        paired_difference(np.zeros(3), np.zeros(3))


def test_one_stratum_is_a_paired_difference():
    draws = np.random.default_rng(5)
    a, b, clusters = draws.random(24) < 0.7, draws.random(24) < 0.4, np.repeat(range(4), 6)
    assert stratified_difference([a], [b], [clusters]) == pytest.approx(paired_difference(a, b, clusters=clusters))
    alone = np.zeros(24, int)
    value, low, high = stratified_difference([a], [b], [alone])
    assert (value, low, high) == pytest.approx(paired_difference(a, b))


def test_strata_weigh_equally_and_one_that_all_agree_on_has_an_interval():
    ones, many = np.ones(4, bool), np.zeros(64, bool)
    value, low, high = stratified_difference([ones, many], [~ones, many], [np.arange(4), np.repeat(range(4), 16)])
    assert value == pytest.approx(0.5)
    assert low < value <= high
    with pytest.raises(ValueError, match="at least one stratum"):
        stratified_difference([], [], [])


def test_coverage_of_a_stratified_difference():
    """Twelve conditions with 16 victims under four seeds, whose log odds deviate by .3."""
    draws, covered = np.random.default_rng(11), 0
    base = np.linspace(-2, 2, 12)
    clusters = [np.repeat(range(4), 4)] * 12
    shift = 0.5
    truth = float(np.mean([_mean_share(middle + shift) - _mean_share(middle) for middle in base]))
    for _ in range(200):
        by_seed = draws.normal(0, 0.3, 4)
        odds = base[:, None] + np.repeat(by_seed, 4)
        b = draws.random((12, 16)) < 1 / (1 + np.exp(-odds))
        a = draws.random((12, 16)) < 1 / (1 + np.exp(-odds - shift))
        _, low, high = stratified_difference([*a], [*b], clusters)
        covered += low <= truth <= high
    assert 0.93 <= covered / 200 <= 1


def _mean_share(middle: float) -> float:
    odds = middle + 0.3 * np.random.default_rng(0).normal(size=100_000)
    return float(np.mean(1 / (1 + np.exp(-odds))))


def test_one_stratum_alone_is_agresti_and_coulls_interval():
    """For 3 of 10 with z² added trials, half of them successes (Agresti, Coull 1998)."""
    hits, alone = np.arange(10) < 3, np.zeros(10, int)
    value, low, high = stratified_share([(hits, np.arange(10), alone)])
    z2 = 3.841459
    share = (3 + z2 / 2) / (10 + z2)
    half = np.sqrt(z2 * share * (1 - share) / (10 + z2))
    assert (value, low, high) == pytest.approx((0.3, share - half, share + half), abs=1e-6)


def test_a_change_is_antisymmetric_and_equal_samples_change_nothing():
    draws = np.random.default_rng(4)
    strata = [[(draws.random(16) < 0.5, np.arange(16), np.repeat(range(4), 4)) for _ in range(3)] for _ in range(2)]
    change, low, high = stratified_change(strata[0], strata[1])
    assert stratified_change(strata[1], strata[0]) == pytest.approx((-change, -high, -low), abs=0.01)
    nothing, below, above = stratified_change(strata[0], strata[0])
    assert nothing == 0 and below < 0 < above and below == pytest.approx(-above)
    with pytest.raises(ValueError, match="at least one stratum"):
        stratified_change([], strata[0])


def test_coverage_of_a_stratified_share_and_change():
    """Twelve conditions on the same 16 victims under four seeds; a victim's and a seed's log odds deviate by 1 and .3.

    The change is between two draws of victims under the same seeds, and is 0.
    """
    draws, base, covered, still = np.random.default_rng(12), np.linspace(-2, 2, 12), 0, 0
    groups, clusters = np.arange(16), np.repeat(range(4), 4)
    deviation = np.random.default_rng(0).normal(size=100_000) * np.sqrt(1 + 0.3**2)
    truth = np.mean([np.mean(1 / (1 + np.exp(-middle - deviation))) for middle in base])

    def sample(by_seed):
        odds = base[:, None] + np.repeat(by_seed, 4) + draws.normal(0, 1, 16)
        return [(hits, groups, clusters) for hits in draws.random((12, 16)) < 1 / (1 + np.exp(-odds))]

    for _ in range(200):
        by_seed = draws.normal(0, 0.3, 4)
        first, second = sample(by_seed), sample(by_seed)
        _, low, high = stratified_share(first)
        covered += low <= truth <= high
        _, low, high = stratified_change(first, second)
        still += low <= 0 <= high
    assert covered / 200 >= 0.87
    assert still / 200 >= 0.87
