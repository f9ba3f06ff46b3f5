"""Promise: identification asks for the nearest of a crowd, prints the crowd's size and the chance."""

import numpy as np
import pytest

from bench.kinds.unit import UNIT
from bench.scoring.identify import identify
from bench.scoring.metrics import psnr_db


def test_equals_the_slow_loop(rng):
    truth, gallery = rng.random((5, 3, 1, 4, 4)), rng.random((40, 1, 4, 4))
    guess = truth + rng.uniform(0.1, 1.5, (5, 3, 1, 1, 1)) * rng.standard_normal(truth.shape)
    result = identify(truth, guess, gallery, UNIT)
    for index in np.ndindex(5, 3):
        seen = np.clip(guess[index], 0, 1)
        own = ((truth[index] - seen) ** 2).mean()
        assert result.hits[index] == all(own < ((other - seen) ** 2).mean() for other in gallery)
    assert 0 < result.hits.sum() < 15 and result.gallery == 40
    assert result.chance == pytest.approx(3 / 41), "three guesses, of which each may count for any example"


def test_at_most_a_thousand_strangers(rng):
    result = identify(rng.random((1, 1, 2)), rng.random((1, 1, 2)), rng.random((1200, 2)), UNIT)
    assert result.gallery == 1000 and result.chance == pytest.approx(1 / 1001)


def test_a_blind_guess_hits_at_chance(rng):
    """Guesses that know nothing: against 9 strangers .1 of 2000 hit (standard error .007)."""
    hits = [
        identify(draw[None, None, 0], draw[None, None, 1], draw[2:], UNIT).hits.item()
        for draw in rng.random((2000, 11, 6))
    ]
    assert np.mean(hits) == pytest.approx(0.1, abs=0.02)


def test_a_faint_picture_identifies_where_psnr_sees_nothing(rng):
    """PSNR alone is not privacy: at 14 dB the victim still stands out of 500."""
    truth = rng.random((20, 1, 1, 16, 16))
    guess = np.clip(0.5 + 0.3 * (truth - 0.5), 0, 1)
    guess += 0.02 * rng.standard_normal(truth.shape)
    assert psnr_db(truth, guess).max() < 15
    assert identify(truth, guess, rng.random((500, 1, 16, 16)), UNIT).hits.mean() > 0.9


def test_ties_and_bad_pictures_are_no_hits(rng):
    truth = rng.random((1, 3, 1, 4, 4))
    guess = truth.copy()
    guess[0, 1, 0, 0, 0] = np.nan
    guess[0, 2, 0, 0, 0] = np.inf
    assert identify(truth, guess, rng.random((5, 1, 4, 4)), UNIT).hits.tolist() == [[True, False, False]]
    twins = np.concatenate([rng.random((4, 1, 4, 4)), truth[0]])
    assert not identify(truth, truth, twins, UNIT).hits.any()


def test_no_gallery_is_refused(rng):
    with pytest.raises(ValueError, match="needs a gallery"):
        identify(rng.random((1, 1, 2)), rng.random((1, 1, 2)), np.zeros((0, 2)), UNIT)


def test_chance_with_granted_labels_is_what_guesses_of_the_right_class_get(rng):
    """Guesses that know the labels and nothing else, 400 times over 12 readings of two examples (error below .01)."""
    pool = rng.random((3, 8))  # what a class has in common
    gallery_labels, labels = rng.integers(3, size=40), rng.integers(3, size=(12, 2))

    def drawn(of):
        return np.clip(pool[of] + 0.2 * rng.standard_normal((*of.shape, 8)), 0, 1)

    truth, gallery = drawn(labels), drawn(gallery_labels)
    rates = []
    for _ in range(400):
        guess = drawn(labels)
        rates.append(identify(truth, guess, gallery, UNIT, (labels, gallery_labels)).hits.mean())
    chance = identify(truth, truth, gallery, UNIT, (labels, gallery_labels)).chance
    assert np.mean(rates) <= chance + 0.01
    alike = np.array([[(gallery_labels == label).sum() for label in row] for row in labels])
    twins = np.array([[(row == label).sum() for label in row] for row in labels])
    assert chance == pytest.approx(np.minimum(1, twins / (alike + 1)).mean())
