"""One-sided bounds of a paired increase: closed forms, coverage by simulation, Holm's steps."""

import numpy as np
import pytest
from scipy import stats

from bench.gate.noninferiority import holm, of_numbers, of_shares


def test_equal_clusters_give_students_bound() -> None:
    """With clusters of equal size the bound is the one-sample t bound of the cluster means."""
    generator = np.random.default_rng(0)
    after, before = generator.normal(size=(2, 8, 5))
    increase = of_numbers(after.ravel(), before.ravel(), np.repeat(np.arange(8), 5))
    means = (after - before).mean(axis=1)
    expected = stats.ttest_1samp(means, 0.0, alternative="greater")
    assert increase.p == pytest.approx(expected.pvalue)
    assert increase.lower() == pytest.approx(expected.confidence_interval(0.95).low)
    assert increase.upper() == pytest.approx(
        stats.ttest_1samp(means, 0.0, alternative="less").confidence_interval(0.95).high
    )
    assert (increase.pairs, increase.clusters) == (40, 8)


def test_the_bound_at_level_one_less_p_is_zero() -> None:
    generator = np.random.default_rng(1)
    after, before = generator.random((2, 60)) < [[0.6], [0.35]]
    clusters = np.arange(60) // 6
    figures = of_numbers(after.astype(float), before.astype(float), clusters)
    for increase in (of_shares(after, before, clusters), figures):
        assert increase.p < 0.5
        assert increase.lower(1 - increase.p) == pytest.approx(0, abs=1e-9)


def test_agreement_of_few_pairs_is_no_certainty() -> None:
    """32 pairs of which none changed: z/(n + 2) either way, never [0, 0]."""
    same = np.zeros(32, bool)
    increase = of_shares(same, same, np.arange(32) // 4)
    width = stats.norm.ppf(0.95) / 34
    assert (increase.estimate, increase.upper(), increase.lower()) == pytest.approx((0, width, -width))
    figures = of_numbers(np.full(32, 0.3), np.full(32, 0.1), np.arange(32) // 4)
    assert figures.lower() == figures.upper() == pytest.approx(0.2)
    assert figures.p == 0


def test_one_cluster_bounds_nothing() -> None:
    increase = of_numbers([1.0, 2.0], [0.0, 0.0], [0, 0])
    assert (increase.lower(), increase.upper(), increase.p) == (-np.inf, np.inf, 1.0)


def test_bounds_cover_as_often_as_they_say() -> None:
    """Normal cluster effects, 8 clusters of 4: a one-sided 95 % bound fails in 5 % of 4000 trials, ± 1 %."""
    generator = np.random.default_rng(2)
    clusters, missed = np.repeat(np.arange(8), 4), 0
    for _ in range(4000):
        change = 0.2 + np.repeat(generator.normal(size=8), 4) + generator.normal(size=32)
        missed += of_numbers(change, np.zeros(32), clusters).lower() > 0.2
    assert missed / 4000 == pytest.approx(0.05, abs=0.01)


def test_no_increase_of_shares_is_called_one_in_more_than_a_twentieth() -> None:
    """Independent examples that leak with .5 before and after, seeds with an effect of their own."""
    generator = np.random.default_rng(3)
    clusters, called = np.repeat(np.arange(8), 8), 0
    for _ in range(2000):
        rate = np.clip(0.5 + np.repeat(generator.normal(size=8), 8) * 0.1, 0, 1)
        before, after = generator.random((2, 64)) < rate
        called += of_shares(after, before, clusters).lower() > 0
    assert called / 2000 < 0.05


def test_holm_as_its_paper_has_it() -> None:
    """m = 4, p sorted .005, .01, .03, .04: adjusted .02, .03, .06, .06."""
    adjusted, levels = zip(*holm([0.01, 0.04, 0.03, 0.005]), strict=True)
    assert adjusted == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert levels == pytest.approx((1 - 0.05 / 3, 1 - 0.05 / 2, 1 - 0.05 / 2, 1 - 0.05 / 4))
    assert holm([]) == []


def test_a_test_after_one_that_failed_is_not_rejected() -> None:
    """p = .03 and .04: Hochberg's step-up rejects both, Holm's step-down neither; and no bound is above zero."""
    adjusted, levels = zip(*holm([0.03, 0.04]), strict=True)
    assert adjusted == pytest.approx((0.06, 0.06))
    assert levels == pytest.approx((1 - 0.05 / 2, 1 - 0.05 / 2))
    generator = np.random.default_rng(0)
    for _ in range(200):
        p_values = generator.beta(0.5, 3, size=5).tolist()
        for p, (adjusted_p, level) in zip(p_values, holm(p_values), strict=True):
            assert (p <= 1 - level) == (adjusted_p <= 0.05)  # what its own bound says is what Holm says


def test_what_is_no_pairs_is_refused() -> None:
    with pytest.raises(ValueError, match="finite figures"):
        of_numbers([], [], [])
    with pytest.raises(ValueError, match="finite figures"):
        of_numbers([np.nan], [0.0], [0])
    with pytest.raises(ValueError, match="booleans"):
        of_shares([1, 0], [0, 0], [0, 1])
