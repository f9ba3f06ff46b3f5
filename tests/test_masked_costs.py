"""Promises: masked costs have the exact sum and maximum; messages are uniform; a missing client is an error."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chisquare

from bench.defenses.accounting import bayesian, masked

UNIT = Fraction(1, 1 << masked.FRACTION)
FAR = 1e-6  # a uniform law fails one of these tests with this probability


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def costs(clients: int = 7, orders: int = 5) -> np.ndarray:
    """From 1e-9 to 1e3."""
    return 10 ** random().uniform(-9, 3, (clients, orders))


def uniform(values: list[int], width: int) -> bool:
    """The four highest and the four lowest bits, each by a χ² test."""
    high, low = [value >> (width - 4) for value in values], [value & 15 for value in values]
    return all(chisquare(np.bincount(bits, minlength=16)).pvalue > FAR for bits in (high, low))


def test_the_sum_is_exact_in_units_of_the_fixed_point_and_never_below_the_truth() -> None:
    given = costs()
    integers = masked.fixed(given)
    read = masked.total(masked.messages(integers, random(1)), 7)
    floats = masked.summed(given, random(1))
    for order in range(5):
        exact = [Fraction(value) for value in given[:, order]]
        assert read[order] == sum(math.ceil(value / UNIT) for value in exact)
        assert 0 <= read[order] * UNIT - sum(exact) <= 7 * UNIT
        assert floats[order] == pytest.approx(float(sum(exact)), rel=1e-15)


@pytest.mark.parametrize("value", [0.0, 0.37, 1e9])
def test_a_clients_message_is_uniform_whatever_its_cost(value: float) -> None:
    given = masked.fixed(np.full((3, 2000), value))
    sent = masked.messages(given, random(2))
    assert all(uniform(list(message), masked.WIDTH) for message in sent)
    # two of three messages: their sum is uniform, too, so that a server that loses the third learns nothing
    assert uniform(list((sent[0] + sent[1]) % (1 << masked.WIDTH)), masked.WIDTH)
    assert list(sent.sum(0) % (1 << masked.WIDTH)) == list(given.sum(0))


def test_a_missing_client_is_an_error_of_one_line() -> None:
    sent = masked.messages(masked.fixed(costs()), random())
    with pytest.raises(ValueError, match="^6 of 7 clients sent a masked cost, and masks cancel only in the sum") as why:
        masked.total(sent[:-1], 7)
    assert "\n" not in str(why.value)


def test_a_cost_above_the_limit_is_infinite_and_never_wraps() -> None:
    given = np.array([[math.inf, 1.0, math.nan, 1e40], [math.inf, 2.0, 0.0, 1e40], [0.0, -1e-12, 0.0, 1e40]])
    assert list(masked.summed(given, random())) == [math.inf, 3.0, math.inf, math.inf]


@pytest.mark.parametrize("clients", [2, 7, 40])
def test_the_maximum_is_the_exact_float(clients: int) -> None:
    given = costs(clients, 38)
    given[0, :4] = [0.0, 5e-324, math.inf, 1e308]
    assert (masked.largest(given, random(3)) == given.max(0)).all()
    assert list(masked.largest(np.array([[-1.0, math.nan], [0.0, 1.0]]), random())) == [0.0, math.inf]


@pytest.mark.parametrize("yes", [0, 1, 3])
def test_a_server_reads_of_comparisons_only_whether_any_client_reaches_a_threshold(yes: int) -> None:
    """Sums are 0 without a client above, and uniform alike for one and for three clients."""
    reached = np.zeros((3, 4000), bool)
    reached[:yes] = True
    sent = masked.answers(reached, random(4))
    assert all(uniform([int(each) for each in message], 64) for message in sent)
    sums = [int(each) for each in sent.sum(0, dtype=np.uint64)]
    assert uniform(sums, 64) if yes else not any(sums)


@pytest.mark.parametrize("rounds", [1, 50])
def test_a_joint_cost_from_sums_is_the_cost_from_all_moments(rounds: int) -> None:
    moments = bayesian.log_moments(0.01 * random().random(20), q=0.1)
    expected = bayesian.cost(moments, estimator=1e-16, rounds=rounds)
    found = masked.cost(moments, random(5), estimator=1e-16, rounds=rounds)
    within = rounds * moments.max(0) < 8  # e^8 stays within the limit
    assert within.sum() > 10
    assert found[within] == pytest.approx(expected[within], rel=1e-9)
    assert (found[~within] >= expected[~within] * (1 - 1e-9)).all()


def test_equal_moments_leave_no_deviation() -> None:
    moments = bayesian.log_moments(np.full(6, 0.01), q=0.1)
    found = masked.cost(moments, random(), estimator=1e-16)
    assert found[:20] == pytest.approx(moments[0, :20], rel=1e-12)


def test_huge_moments_are_infinite_and_two_clients_are_no_estimate() -> None:
    assert masked.cost(np.full((3, 1), 1e4), random(), estimator=1e-16)[0] == math.inf
    with pytest.raises(ValueError, match="a cost needs 3 sampled rows, got 2"):
        masked.cost(np.zeros((2, 1)), random(), estimator=0.1)
