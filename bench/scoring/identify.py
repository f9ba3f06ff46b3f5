"""Scoring: could the reconstruction pick its victim out of a crowd?  PSNR alone is not privacy."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bench.scoring.metrics import clipped, mse, within_range

GALLERY_LIMIT = 1000
# Distances to the gallery are computed by the expanded square; this is above its rounding (90 dB).
_TIE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Identification:
    """`hits` (reading, example); `gallery` how many strangers stood beside; `chance` for a blind guess."""

    hits: NDArray[np.bool_]
    gallery: int
    chance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """Whether an attack with a gallery picked each example: `hits` (reading, example); `chance` for a blind guess.

    `places` (reading, example): at which place of the decoder's list the truth stands, from 0; the list's length where
    it is not on it, -1 for examples that have no list; None where there is no decoder.
    """

    hits: NDArray[np.bool_]
    chance: float
    places: NDArray[np.int64] | None = None


def identify(
    truth: ArrayLike, guess: ArrayLike, gallery: ArrayLike, labels: tuple[ArrayLike, ArrayLike] | None = None
) -> Identification:
    """Whether each true example is nearer (MSE) to its guess than every one of the gallery.

    `truth` and `guess` (reading, example, *shape), the guess clipped; `gallery` (example, *shape) in [0, 1], of which
    the first min(1000, all) are used: the split's order is a keyed draw.  A tie is no hit, nor is a guess that is not
    finite.  `labels`: of the truth (reading, example) and of the gallery (example,), where the attacker was granted
    labels, so that a blind guess is of the right class.
    """
    true = within_range(truth)
    strangers = within_range(np.asarray(gallery)[:GALLERY_LIMIT])
    if not len(strangers):
        raise ValueError("identification needs a gallery, got none")
    claimed = np.asarray(guess, np.float64)
    finite = np.isfinite(claimed).reshape(*claimed.shape[:2], -1).all(axis=-1)
    claimed = np.where(finite.reshape(*finite.shape, *[1] * (claimed.ndim - 2)), clipped(claimed), 0)
    crowd, flat = strangers.reshape(len(strangers), -1), claimed.reshape(*finite.shape, -1)
    squares = (crowd**2).sum(-1) + (flat**2).sum(-1)[..., None] - 2 * flat @ crowd.T
    nearest = squares.min(axis=-1) / crowd.shape[1]
    hits = finite & (mse(true, claimed) < nearest - _TIE)
    return Identification(hits=hits, gallery=len(crowd), chance=chance_of(true.shape[1], len(crowd), labels))


def chance_of(examples: int, strangers: int, labels: tuple[ArrayLike, ArrayLike] | None) -> float:
    """The most that blind guesses identify, on average over the examples: a reading's examples are so many guesses, of
    which each may count for any of them; with granted labels, for any of its class."""
    if labels is None:
        return min(1.0, examples / (strangers + 1))
    of_truth, of_gallery = np.asarray(labels[0], np.int64), np.asarray(labels[1], np.int64)[:strangers]
    guesses = (of_truth[:, :, None] == of_truth[:, None, :]).sum(-1)
    alike = np.bincount(of_gallery, minlength=int(of_truth.max()) + 1)[of_truth]
    return float(np.minimum(1.0, guesses / (alike + 1)).mean())
