"""Scoring: can the reconstruction single out its victim among strangers?  PSNR is no measure of privacy."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bench.kinds.base import Values

GALLERY_LIMIT = 1000
# Above the rounding of distances by the expanded square (90 dB).
_TIE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Identification:
    """Identified examples of a cell."""

    hits: NDArray[np.bool_]
    """Identified or not, (reading, example)."""
    gallery: int
    """Number of strangers."""
    chance: float
    """Share that blind guesses identify."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """Examples that an attack picked from its granted gallery."""

    hits: NDArray[np.bool_]
    """Picked or not, (reading, example)."""
    chance: float
    """Share that blind guesses pick."""
    places: NDArray[np.int64] | None = None
    """Place of the truth on the decoder's list, from 0, (reading, example); the list's length for a truth that the
    list lacks, -1 for examples without list.  None for cells without decoder."""


def identify(
    truth: ArrayLike,
    guess: ArrayLike,
    gallery: ArrayLike,
    values: Values,
    labels: tuple[ArrayLike, ArrayLike] | None = None,
) -> Identification:
    """Examples that are nearer to their guess than all strangers are.

    `truth` and `guess` (reading, example, *shape), the guess clipped; `gallery` (example, *shape), at most its first
    1000 examples: their order is a keyed draw.  A tie is no hit, nor is a guess with NaN.  `labels` for attackers
    with granted labels: those of the truth (reading, example) and of the gallery (example,).  Blind guesses are then
    drawn from the right class.
    """
    true = values.checked(truth)
    strangers = values.checked(np.asarray(gallery)[:GALLERY_LIMIT])
    if not len(strangers):
        raise ValueError("identification needs a gallery, got none")
    claimed = np.asarray(guess, np.float64)
    finite = np.isfinite(claimed).reshape(*claimed.shape[:2], -1).all(axis=-1)
    claimed = np.where(finite.reshape(*finite.shape, *[1] * (claimed.ndim - 2)), values.cleaned(claimed), 0)
    crowd, flat = strangers.reshape(len(strangers), -1), claimed.reshape(*finite.shape, -1)
    nearest = values.distances(flat, crowd).min(axis=-1)
    hits = finite & (values.apart(true, claimed) < nearest - _TIE)
    return Identification(hits=hits, gallery=len(crowd), chance=chance_of(true.shape[1], len(crowd), labels))


def chance_of(examples: int, strangers: int, labels: tuple[ArrayLike, ArrayLike] | None) -> float:
    """Largest share that blind guesses identify: a reading with n examples allows n guesses, and each may hit any of
    these examples (with granted labels: any example with its class)."""
    if labels is None:
        return min(1.0, examples / (strangers + 1))
    of_truth, of_gallery = np.asarray(labels[0], np.int64), np.asarray(labels[1], np.int64)[:strangers]
    guesses = (of_truth[:, :, None] == of_truth[:, None, :]).sum(-1)
    alike = np.bincount(of_gallery, minlength=int(of_truth.max()) + 1)[of_truth]
    return float(np.minimum(1.0, guesses / (alike + 1)).mean())
