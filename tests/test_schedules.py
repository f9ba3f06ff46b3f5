"""Schedules: the printed formulas, where they begin, where they end, what they refuse."""

import math

import pytest

from bench.defenses.schedules import Constant, Cyclic, Exponential, Linear, Staircase, value_at

ALL = (
    Constant(value=6.0),
    Linear(initial=6.0, slope=0.01),
    Staircase(initial=6.0, drop=0.1, every=10),
    Exponential(initial=6.0, decay=0.01),
    Cyclic(initial=6.0, rounds=100, cycles=3),
)


@pytest.mark.parametrize("schedule", ALL, ids=repr)
def test_starts_at_its_initial_value_and_stays_between_it_and_zero(schedule):
    assert schedule(0) == 6.0
    assert all(0 <= schedule(t) <= 6.0 for t in range(500))


@pytest.mark.parametrize(
    ("schedule", "t", "value"),
    [
        (Constant(value=2.5), 70, 2.5),
        (Linear(initial=15.0, slope=0.005), 40, 12.0),
        (Linear(initial=15.0, slope=0.05), 21, 0.0),
        (Staircase(initial=15.0, drop=0.1, every=10), 9, 15.0),
        (Staircase(initial=15.0, drop=0.1, every=10), 10, 13.5),
        (Staircase(initial=15.0, drop=0.1, every=10), 39, 10.5),
        (Staircase(initial=15.0, drop=0.6, every=1), 2, 0.0),
        (Exponential(initial=15.0, decay=0.01), 100, 15 / math.e),
        (Cyclic(initial=8.0, rounds=100, cycles=2), 25, 4.0),
        (Cyclic(initial=8.0, rounds=100, cycles=2), 50, 8.0),
    ],
    ids=repr,
)
def test_values_by_hand(schedule, t, value):
    assert schedule(t) == pytest.approx(value, abs=1e-12)


def test_a_cycle_has_its_length_rounded_up_and_falls_all_along():
    schedule = Cyclic(initial=1.0, rounds=10, cycles=3)  # cycles of 4 rounds
    assert [t for t in range(13) if schedule(t) == 1.0] == [0, 4, 8, 12]
    assert schedule(0) > schedule(1) > schedule(2) > schedule(3) > 0
    assert schedule(3) == pytest.approx((math.cos(0.75 * math.pi) + 1) / 2)


def test_a_number_is_a_schedule_that_does_not_move():
    assert value_at(0.3, 17) == 0.3
    assert value_at(Linear(initial=1.0, slope=0.1), 5) == 0.5


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (Constant, {"value": -1.0}, "value must be at least 0 and finite, got -1.0"),
        (Constant, {"value": math.nan}, "value must be at least 0 and finite, got nan"),
        (Linear, {"initial": math.inf, "slope": 0.1}, "initial must be at least 0 and finite, got inf"),
        (Linear, {"initial": 1.0, "slope": -0.1}, "slope must be"),
        (Staircase, {"initial": 1.0, "drop": 0.1, "every": 0}, "every must be at least 1 and finite, got 0"),
        (Exponential, {"initial": 1.0, "decay": -1.0}, "decay must be"),
        (Cyclic, {"initial": 1.0, "rounds": 0, "cycles": 1}, "rounds must be"),
        (Cyclic, {"initial": 1.0, "rounds": 5, "cycles": 0}, "cycles must be"),
    ],
)
def test_refuses(kind, given, message):
    with pytest.raises(ValueError, match=message):
        kind(**given)
