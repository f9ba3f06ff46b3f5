"""Scoring: structural similarity of examples that are images (Wang, Bovik, Sheikh, Simoncelli 2004)."""

import numpy as np
from numpy.typing import ArrayLike
from skimage.metrics import structural_similarity

from bench.scoring.metrics import Floats, clipped, unit

WINDOW = 7  # pixels; scikit-image's default, with its sample covariance, K1 = .01 and K2 = .03


def ssim(truth: ArrayLike, guess: ArrayLike) -> Floats:
    """Mean SSIM per example, −1 to 1: data range 1, clipped guess, mean over channels.

    (reading, example, channel, height, width) → (reading, example).  NaN where a side is under 7 pixels.
    """
    x, y = unit(truth), clipped(guess)
    values = np.full(x.shape[:2], np.nan)
    if min(x.shape[-2:]) >= WINDOW:
        for place in np.ndindex(values.shape):
            values[place] = structural_similarity(
                x[place], y[place], win_size=WINDOW, data_range=1, channel_axis=0
            )
    return values
