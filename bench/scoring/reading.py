"""Similarity between the defended reading and the undefended gradient; only the harness knows both."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from bench.kinds.base import Floats

SNR_CAP_DB = 120.0


def reading_snr(values: Mapping[str, ArrayLike], undefended: Mapping[str, ArrayLike]) -> Floats:
    """Measure a defense's strength as the signal-to-noise ratio of each reading (observed update), 10·log10(‖g‖²/‖r -
    g‖²) in dB: (reading,). `values` are the defended readings r, and `undefended` the same readings without the
    defense, g; both are name → (reading, observation, *shape), and count as a vector per reading. The ratio is cut to
    ±`SNR_CAP_DB`; equal readings get the cap. NaN for a zero g, and for r or g with NaN."""
    read, clean = _vectors(values, undefended)
    signal, noise = (clean**2).sum(axis=1), ((read - clean) ** 2).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = 10 * (np.log10(signal) - np.log10(noise))
    usable = (signal > 0) & np.isfinite(signal) & np.isfinite(noise)
    return np.where(usable, np.clip(ratio, -SNR_CAP_DB, SNR_CAP_DB), np.nan)


def reading_cosine(values: Mapping[str, ArrayLike], undefended: Mapping[str, ArrayLike]) -> Floats:
    """Measure a defense's effect on the direction of each reading (observed update): the cosine, -1 to 1, with the same
    reading without the defense, (reading,). `values` are the readings, `undefended` the readings without the defense,
    both name → (reading, observation, *shape). NaN if either is zero."""
    read, clean = _vectors(values, undefended)
    norms = np.sqrt((read**2).sum(axis=1) * (clean**2).sum(axis=1))
    usable = (norms > 0) & np.isfinite(norms)
    return np.where(usable, (read * clean).sum(axis=1) / np.where(usable, norms, 1), np.nan)


def _vectors(values: Mapping[str, ArrayLike], undefended: Mapping[str, ArrayLike]) -> tuple[Floats, Floats]:
    read = {name: np.asarray(array, np.float64) for name, array in values.items()}
    clean = {name: np.asarray(undefended[name], np.float64) for name in read if name in undefended}
    if read.keys() != undefended.keys() or any(read[n].shape != clean[n].shape for n in read):
        raise ValueError("expected two readings of the same variables and shapes")
    flat = [np.concatenate([a[n].reshape(len(a[n]), -1) for n in read], axis=1) for a in (read, clean)]
    return flat[0], flat[1]
