"""Promise: a batch is paired one to one, on one metric, and never better than it should be."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.errors import PluginError
from bench.kinds.unit import UNIT, mse
from bench.scoring.assign import assign, in_order

steady = settings(derandomize=True, database=None, deadline=None, max_examples=40)


@steady
@given(st.integers(0, 2**32), st.integers(1, 5), st.floats(0.05, 2))
def test_the_pairing_is_the_best_of_all_one_to_one_pairings(seed, pictures, noise):
    rng = np.random.default_rng(seed)
    truth = rng.random((2, pictures, 1, 3, 3))
    guess = truth + noise * rng.standard_normal(truth.shape)
    order = assign(truth, guess, UNIT)
    for row in range(2):
        assert sorted(order[row]) == list(range(pictures))
        cut = np.clip(guess, 0, 1)
        sums = [mse(truth, cut[:, list(p)])[row].sum() for p in permutations(range(pictures))]
        assert mse(truth, in_order(cut, order))[row].sum() == pytest.approx(min(sums), abs=1e-12)


@steady
@given(st.integers(0, 2**32), st.permutations(range(4)))
def test_the_order_of_the_guesses_changes_nothing(seed, order):
    rng = np.random.default_rng(seed)
    truth = rng.random((3, 4, 1, 3, 3))
    guess = rng.random(truth.shape)
    shuffled = guess[:, order]
    np.testing.assert_array_equal(
        in_order(guess, assign(truth, guess, UNIT)), in_order(shuffled, assign(truth, shuffled, UNIT))
    )


def test_one_good_guess_is_not_counted_for_every_picture():
    """The many-to-one trap: copies of one picture would each be a success for a true picture near it."""
    truth = np.stack([np.full((1, 4, 4), value) for value in (0.50, 0.52, 0.54)])[None]
    guess = np.stack([np.full((1, 4, 4), value) for value in (0.52, 0.0, 1.0)])[None]
    order = assign(truth, guess, UNIT)
    assert sorted(order[0]) == [0, 1, 2]
    assert (mse(truth, in_order(guess, order)) < 0.01).sum() == 1


def test_the_pairing_looks_at_the_clipped_guess():
    truth = np.stack([np.ones((1, 2, 2)), np.zeros((1, 2, 2))])[None]
    guess = np.stack([np.full((1, 2, 2), 0.4), np.full((1, 2, 2), 9.0)])[None]
    np.testing.assert_array_equal(assign(truth, guess, UNIT), [[1, 0]])


def test_one_dummy_for_a_batch_leaves_the_rest_missing():
    truth = np.stack([np.full((1, 2, 2), value) for value in (0.1, 0.9, 0.5)])[None]
    order = assign(truth, truth[:, 1:2], UNIT)
    np.testing.assert_array_equal(order, [[-1, 0, -1]])
    np.testing.assert_array_equal(np.isnan(in_order(truth[:, 1:2], order)).all(axis=(2, 3, 4)), [[True, False, True]])


def test_more_guesses_than_pictures_are_refused():
    with pytest.raises(PluginError, match="expected at most 2 reconstructions"):
        assign(np.zeros((1, 2, 1, 2, 2)), np.zeros((1, 3, 1, 2, 2)), UNIT)
    with pytest.raises(PluginError, match="of shape"):
        assign(np.zeros((1, 2, 1, 2, 2)), np.zeros((1, 2, 4)), UNIT)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_guess_takes_what_the_good_ones_leave(bad):
    truth = np.stack([np.full((1, 2, 2), value) for value in (0.1, 0.9)])[None]
    guess = truth.copy()
    guess[0, 0, 0, 1, 1] = bad
    np.testing.assert_array_equal(assign(truth, guess, UNIT), [[0, 1]])
    np.testing.assert_array_equal(assign(truth, guess[:, ::-1], UNIT), [[1, 0]])
