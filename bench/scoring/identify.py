"""Identification: is the reconstruction nearer to its victim than to strangers?  PSNR does not measure this."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bench.kinds.base import Values

GALLERY_LIMIT = 1000
# Larger than the rounding error of distances by the expanded square (90 dB).
_TIE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Identification:
    """Result of identification: whether each reconstruction is nearer to its true example than to every stranger."""

    hits: NDArray[np.bool_]
    """(reading, example): whether the example was identified."""
    gallery: int
    """Number of strangers."""
    chance: float
    """Share of examples that blind guesses would identify."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """Result of naming: whether the attack picked each true example among the candidates that it was granted (the
    gallery)."""

    hits: NDArray[np.bool_]
    """(reading, example): whether the attack picked the true example."""
    chance: float
    """Share of true examples that blind guesses would pick."""
    places: NDArray[np.int64] | None = None
    """(reading, example): rank of the true example among the ranked candidates, from 0. A true example that the attack
    did not rank has the number of ranked candidates; -1 stands for no ranking of this example. None: no ranking at all.
    """


def identify(
    truth: ArrayLike,
    guess: ArrayLike,
    gallery: ArrayLike,
    values: Values,
    labels: tuple[ArrayLike, ArrayLike] | None = None,
) -> Identification:
    """Decide which true examples are identified: the reconstruction is nearer to the true example than to every
    stranger. An example with an equal distance, or with NaN in its reconstruction, is not identified.

    - `truth`, `guess` (reading, example, *shape): true examples and reconstruction, which is clipped here.
    - `gallery` (example, *shape): strangers; only the first 1000 are used.
    - `values`: operations of the kind of data, which give the distance.
    - `labels`: labels of the truth (reading, example) and of the gallery (example,), if labels were granted to the
      attacker; the chance level is then within the right class. Otherwise None."""
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
    """Return the chance level of identification: the largest share of true examples that an attacker can identify by
    blind guesses among true examples and strangers.

    - `examples`: number n of examples in a reading (observed update). The attacker has n guesses for the reading, and
      each guess may hit any of the n examples.
    - `strangers`: number of strangers.
    - `labels`: labels of the truth (reading, example) and of the strangers (example,), if granted to the attacker:
      guesses are then limited to the right class. None: not granted."""
    if labels is None:
        return min(1.0, examples / (strangers + 1))
    of_truth, of_gallery = np.asarray(labels[0], np.int64), np.asarray(labels[1], np.int64)[:strangers]
    guesses = (of_truth[:, :, None] == of_truth[:, None, :]).sum(-1)
    alike = np.bincount(of_gallery, minlength=int(of_truth.max()) + 1)[of_truth]
    return float(np.minimum(1.0, guesses / (alike + 1)).mean())
