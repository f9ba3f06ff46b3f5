"""Scoring: how far one example is from another, in one place, with one data range.

Arrays are (reading, example, *shape) with the truth in [0, 1]; results are (reading, example) in float64.  An example
with NaN in it has NaN for a figure; who averages must not drop it.  `bench.scoring.score` adds LPIPS, which
needs a network, and the margin over the prior-only baselines.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from skimage.metrics import structural_similarity

from bench.datasets.base import Group
from bench.record.metrics import GROUPS_RIGHT, METRICS, NUMERIC_RMSE, PSNR_DB, RMSE, RMSE_UNCLIPPED, SSIM, DataKind

Floats = NDArray[np.float64]
SSIM_WINDOW = 7  # pixels; scikit-image's default, with its sample covariance, K1 = .01 and K2 = .03
# 10·log10(1/MSE) has no finite value for equal examples.  120 dB is an RMSE of 1e-6, float32's rounding
# of values near 1: nothing that is stored can be told from equal above it.
PSNR_CAP_DB = 120.0


def within_range(truth: ArrayLike) -> Floats:
    """The truth as float64; raises `ValueError` where it leaves [0, 1], the range all figures assume."""
    array = np.asarray(truth, np.float64)
    if array.size and not (array.min() >= 0 and array.max() <= 1):
        raise ValueError(f"examples must lie in [0, 1], got {array.min():g} to {array.max():g}; scale them")
    return array


def clipped(guess: ArrayLike) -> Floats:
    """A reconstruction as float64, cut to [0, 1]."""
    return np.clip(np.asarray(guess, np.float64), 0, 1)


def mse(truth: ArrayLike, guess: ArrayLike) -> Floats:
    """Mean squared difference per example, of the arrays as they are."""
    with np.errstate(over="ignore"):  # a diverged example may be too large to square: inf is the answer
        squares = (np.asarray(truth, np.float64) - np.asarray(guess, np.float64)) ** 2
        means: Floats = squares.reshape(*squares.shape[:2], -1).mean(axis=-1)
    return means


def rmse(truth: ArrayLike, guess: ArrayLike) -> Floats:
    """Root mean squared error per example of the clipped guess, in units of the range, 0 to 1."""
    return np.sqrt(mse(within_range(truth), clipped(guess)))


def rmse_unclipped(truth: ArrayLike, guess: ArrayLike) -> Floats:
    """Root mean squared error per example of the guess as optimised; it has no upper end."""
    return np.sqrt(mse(within_range(truth), guess))


def psnr_db(truth: ArrayLike, guess: ArrayLike) -> Floats:
    """Peak signal-to-noise ratio per example in dB, 10·log10(1/MSE): data range 1, clipped guess.

    At most `PSNR_CAP_DB`, which stands for equal examples, so that records hold finite numbers.
    """
    error = mse(within_range(truth), clipped(guess))
    return -10 * np.log10(np.maximum(error, 10 ** (-PSNR_CAP_DB / 10)))


def ssim(truth: ArrayLike, guess: ArrayLike) -> Floats:
    """Mean SSIM per image, −1 to 1 (Wang, Bovik, Sheikh, Simoncelli 2004): clipped guess, mean over channels.

    (reading, example, channel, height, width) → (reading, example).  NaN where a side is under 7 pixels.
    """
    x, y = within_range(truth), clipped(guess)
    values = np.full(x.shape[:2], np.nan)
    if min(x.shape[-2:]) >= SSIM_WINDOW:
        for at in np.ndindex(values.shape):
            values[at] = structural_similarity(x[at], y[at], win_size=SSIM_WINDOW, data_range=1, channel_axis=0)
    return values


def numeric_rmse(truth: ArrayLike, guess: ArrayLike, groups: Sequence[Group]) -> Floats:
    """RMSE per row over the numeric columns, each in units of its deviation; NaN without any.

    Rows are (reading, example, feature), the guess is clipped.  A column that never varies has no deviation to be
    measured by and counts in units of the range.
    """
    true, cut = within_range(truth), clipped(guess)
    scales = {n: group.deviation or 1.0 for group in groups if not group.categorical for n in group.columns}
    if not scales:
        return np.full(true.shape[:2], np.nan)
    columns, scale = list(scales), np.array(list(scales.values()))
    return np.sqrt(mse(true[..., columns] / scale, cut[..., columns] / scale))


def groups_right(truth: ArrayLike, guess: ArrayLike, groups: Sequence[Group]) -> Floats:
    """Share per row of the categorical groups whose largest column is the true one; NaN without any.

    A tie is not an answer: a guess of equal columns is wrong.  A group of one column (yes or no) is right on the true
    side of one half.  A missing value, a group of zeros alone, is right where no column reaches one half.
    """
    true, named = within_range(truth), np.asarray(guess, np.float64)
    right = []
    for columns in (list(group.columns) for group in groups if group.categorical):
        actual, claimed = true[..., columns], named[..., columns]
        if len(columns) == 1:
            right.append((claimed[..., 0] > 0.5) == (actual[..., 0] > 0.5))
        else:
            largest = claimed == claimed.max(axis=-1, keepdims=True)
            named_right = (claimed.argmax(-1) == actual.argmax(-1)) & (largest.sum(-1) == 1)
            right.append(np.where(actual.any(axis=-1), named_right, claimed.max(axis=-1) < 0.5))
    share = np.mean(right, axis=0, dtype=np.float64) if right else np.nan
    return np.where(np.isfinite(named).all(axis=-1), share, np.nan)


MEASURES: Mapping[str, Callable[[Floats, Floats, Sequence[Group]], Floats]] = {
    RMSE.name: lambda truth, guess, groups: rmse(truth, guess),
    RMSE_UNCLIPPED.name: lambda truth, guess, groups: rmse_unclipped(truth, guess),
    PSNR_DB.name: lambda truth, guess, groups: psnr_db(truth, guess),
    SSIM.name: lambda truth, guess, groups: ssim(truth, guess),
    NUMERIC_RMSE.name: numeric_rmse,
    GROUPS_RIGHT.name: groups_right,
}


def measured(truth: Floats, guess: Floats, kind: DataKind, groups: Sequence[Group]) -> dict[str, Floats]:
    """Metric → (reading, example), of every metric that this kind of data has."""
    names = [metric.name for metric in METRICS if kind in metric.kinds and metric.name in MEASURES]
    return {name: MEASURES[name](truth, guess, groups) for name in names}
