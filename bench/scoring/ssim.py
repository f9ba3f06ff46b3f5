"""Scoring: structural similarity of many pictures at once (Wang, Bovik, Sheikh, Simoncelli 2004)."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.ndimage import uniform_filter

from bench.scoring.metrics import Floats, clipped, unit

WINDOW = 7  # pixels; scikit-image's default, with its sample covariance, K1 = .01 and K2 = .03


def ssim(truth: ArrayLike, guess: ArrayLike) -> Floats:
    """Mean SSIM per example, −1 to 1: data range 1, clipped guess, mean over channels.

    (reading, example, channel, height, width) → (reading, example), equal to scikit-image's
    `structural_similarity(data_range=1, channel_axis=0)`.  NaN where a side is under 7 pixels.
    """
    x, y = unit(truth), clipped(guess)
    if min(x.shape[-2:]) < WINDOW:
        return np.full(x.shape[:2], np.nan)
    mean_x, mean_y = _means(x), _means(y)
    sample = WINDOW**2 / (WINDOW**2 - 1)
    var_x = sample * (_means(x * x) - mean_x**2)
    var_y = sample * (_means(y * y) - mean_y**2)
    covariance = sample * (_means(x * y) - mean_x * mean_y)
    c1, c2 = 0.01**2, 0.03**2
    # Wang et al. 2004, eq. 13.
    similar = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    total = (mean_x**2 + mean_y**2 + c1) * (var_x + var_y + c2)
    found: Floats = (similar / total).mean(axis=(-3, -2, -1))
    return found


def _means(pictures: Floats) -> Floats:
    """Means over every window that lies whole in the picture."""
    size = (1,) * (pictures.ndim - 2) + (WINDOW, WINDOW)
    edge = WINDOW // 2
    filtered: Floats = uniform_filter(pictures, size)[..., edge:-edge, edge:-edge]
    return filtered
