"""Distances between truth and reconstruction.

Arrays are (reading, example, *shape); results are (reading, example) in float64.  An example with NaN gets the figure
NaN, which averages must count as a failure.  `bench.scoring.score` adds learned metrics, which need a network, and the
margin over the prior-only baselines."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike
from skimage.metrics import structural_similarity

from bench.datasets.base import Group
from bench.kinds.base import Floats, Kind
from bench.kinds.texts import PAD, TEXT, lengths, misplaced
from bench.kinds.unit import clipped, mse, within_range
from bench.record.metrics import (
    GROUPS_RIGHT,
    NUMERIC_RMSE,
    PSNR_DB,
    RMSE,
    RMSE_UNCLIPPED,
    ROUGE_1,
    ROUGE_2,
    SSIM,
    TOKEN_PRECISION,
    TOKEN_RECALL,
    TOKENS_RIGHT,
    Metric,
    of_kind,
)

SSIM_WINDOW = 7  # pixels; scikit-image's default, with its sample covariance, K1 = .01 and K2 = .03
# 10·log10(1/MSE) is infinite for equal examples.  120 dB is an RMSE of 1e-6, float32's rounding of values near 1:
# stored examples that are nearer count as equal.
PSNR_CAP_DB = 120.0
MEASURES: dict[str, Callable[[Floats, Floats, Sequence[Group]], Floats]] = {}  # metric → its measure
_Measure = TypeVar("_Measure", bound=Callable[..., Floats])


def _measures(metric: Metric, *, of_groups: bool = False) -> Callable[[_Measure], _Measure]:
    """Enter a function as the measure of `metric`; `of_groups`: the function also takes a table's groups."""

    def entered(measure: _Measure) -> _Measure:
        MEASURES[metric.name] = measure if of_groups else lambda truth, guess, _: measure(truth, guess)
        return measure

    return entered


@_measures(RMSE)
def rmse(truth: ArrayLike, guess: ArrayLike) -> Floats:
    """Return the root mean squared error of each example, 0 to 1, between `truth` and the clipped `guess`, both
    (reading, example, *shape): (reading, example)."""
    return np.sqrt(mse(within_range(truth), clipped(guess)))


@_measures(RMSE_UNCLIPPED)
def rmse_unclipped(truth: ArrayLike, guess: ArrayLike) -> Floats:
    """Return the root mean squared error of each example between `truth` and `guess`, both (reading, example, *shape):
    (reading, example). The error has no upper bound."""
    return np.sqrt(mse(within_range(truth), guess))


@_measures(PSNR_DB)
def psnr_db(truth: ArrayLike, guess: ArrayLike) -> Floats:
    """Return the peak signal-to-noise ratio of each example in dB, 10·log10(1/MSE), between `truth` and the clipped
    `guess`, both (reading, example, *shape): (reading, example). The largest figure is `PSNR_CAP_DB`, also for equal
    examples."""
    error = mse(within_range(truth), clipped(guess))
    return -10 * np.log10(np.maximum(error, 10 ** (-PSNR_CAP_DB / 10)))


@_measures(SSIM)
def ssim(truth: ArrayLike, guess: ArrayLike) -> Floats:
    """Return the mean SSIM of each image, -1 to 1, between `truth` and the clipped `guess` (Wang et al. 2004). Both are
    (reading, example, channel, height, width); the result is (reading, example), a mean over channels. NaN below 7
    pixels per side."""
    x, y = within_range(truth), clipped(guess)
    values = np.full(x.shape[:2], np.nan)
    if min(x.shape[-2:]) >= SSIM_WINDOW:
        for at in np.ndindex(values.shape):
            values[at] = structural_similarity(x[at], y[at], win_size=SSIM_WINDOW, data_range=1, channel_axis=0)
    return values


@_measures(NUMERIC_RMSE, of_groups=True)
def numeric_rmse(truth: ArrayLike, guess: ArrayLike, groups: Sequence[Group]) -> Floats:
    """Return the root mean squared error of each table row over numeric columns, in units of the column's standard
    deviation: (reading, example). `truth` and `guess` are (reading, example, feature), and the guess is clipped.
    `groups` describe the columns. A constant column's unit is the range, 1. NaN without numeric columns."""
    true, cut = within_range(truth), clipped(guess)
    scales = {n: group.deviation or 1.0 for group in groups if not group.categorical for n in group.columns}
    if not scales:
        return np.full(true.shape[:2], np.nan)
    columns, scale = list(scales), np.array(list(scales.values()))
    return np.sqrt(mse(true[..., columns] / scale, cut[..., columns] / scale))


@_measures(GROUPS_RIGHT, of_groups=True)
def groups_right(truth: ArrayLike, guess: ArrayLike, groups: Sequence[Group]) -> Floats:
    """Return the share of categorical features for which `guess` has the true category, for each table row: (reading,
    example). NaN without such features. `truth` and `guess` are (reading, example, feature); `groups` describe the
    columns of each feature.

    The largest column names the category; a tie is wrong. A group with a single column (yes or no) is right on the true
    side of .5. A missing value in `truth` (all zeros) is right if no column reaches .5."""
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


@_measures(TOKENS_RIGHT)
def tokens_right(truth: ArrayLike, guess: ArrayLike) -> Floats:
    """Return the share of tokens in their places for each text: (reading, example). `truth` and `guess` are (reading,
    example, position), and the share is relative to the longer text. NaN for a guess with NaN."""
    true, claimed = TEXT.values.checked(truth), np.asarray(guess, np.float64)
    right = 1 - misplaced(true, TEXT.values.cleaned(claimed))
    return np.where(np.isfinite(claimed).all(-1), right, np.nan)


@_measures(TOKEN_RECALL)
def token_recall(truth: ArrayLike, guess: ArrayLike) -> Floats:
    """Return the share of each true text's tokens that the guess holds in any place: (reading, example). `truth` and
    `guess` are (reading, example, position). A token counts as often as it occurs. NaN for a guess with NaN."""
    true = TEXT.values.checked(truth)
    recall: Floats = _shared(true, guess) / lengths(true)
    return recall


@_measures(TOKEN_PRECISION)
def token_precision(truth: ArrayLike, guess: ArrayLike) -> Floats:
    """Return the share of each guess's tokens that the true text holds in any place: (reading, example). `truth` and
    `guess` are (reading, example, position). A token counts as often as it occurs. NaN for a guess with NaN; 0 for an
    empty guess."""
    claimed = np.asarray(guess, np.float64)
    count = (TEXT.values.cleaned(claimed) != PAD).sum(-1)
    precision: Floats = _shared(TEXT.values.checked(truth), claimed) / np.maximum(count, 1)
    return precision


@_measures(ROUGE_1)
def rouge_1(truth: ArrayLike, guess: ArrayLike) -> Floats:
    """Return ROUGE-1 of each text, 0 to 1: the harmonic mean of token recall and precision, (reading, example). `truth`
    and `guess` are (reading, example, position). NaN for a guess with NaN; 0 without a common token."""
    return _rouge(truth, guess, 1)


@_measures(ROUGE_2)
def rouge_2(truth: ArrayLike, guess: ArrayLike) -> Floats:
    """Return ROUGE-2 of each text, 0 to 1: the harmonic mean of recall and precision of pairs of adjacent tokens,
    (reading, example). `truth` and `guess` are (reading, example, position). NaN for a guess with NaN; 0 without a
    common pair."""
    return _rouge(truth, guess, 2)


def _rouge(truth: ArrayLike, guess: ArrayLike, length: int) -> Floats:
    """Return ROUGE of each text by runs of `length` adjacent tokens (Lin 2004), as the package rouge-score."""
    true, claimed = TEXT.values.checked(truth), np.asarray(guess, np.float64)
    counts = lengths(true) + lengths(TEXT.values.cleaned(claimed)) - 2 * (length - 1)
    shared: Floats = 2 * _shared(true, claimed, length) / np.maximum(counts, 1)
    return shared


def _shared(truth: Floats, guess: ArrayLike, length: int = 1) -> Floats:
    """Return the number of runs of `length` adjacent tokens that each text of `truth` and `guess` have in common, with
    repeats."""
    raw = np.asarray(guess, np.float64)
    claimed = TEXT.values.cleaned(raw)
    common = np.full(truth.shape[:2], np.nan)
    for at in np.ndindex(common.shape):
        if np.isfinite(raw[at]).all():
            common[at] = (_runs(truth[at], length) & _runs(claimed[at], length)).total()
    return common


def _runs(text: Floats, length: int) -> Counter[tuple[float, ...]]:
    """Count the runs of `length` adjacent tokens in `text` (position,); padding is left out."""
    tokens = text[text != PAD].tolist()
    return Counter(zip(*(tokens[start:] for start in range(length)), strict=False))


def measured(truth: Floats, guess: Floats, kind: Kind, groups: Sequence[Group]) -> dict[str, Floats]:
    """Return every metric of this kind of data between `truth` and `guess` (reading, example, *shape): name → (reading,
    example). `groups` describe a table's columns."""
    names = [metric.name for metric in of_kind(kind) if metric.name in MEASURES]
    return {name: MEASURES[name](truth, guess, groups) for name in names}
