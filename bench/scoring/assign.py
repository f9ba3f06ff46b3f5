"""Scoring: which reconstruction is of which true example: one to one, on one metric."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

from bench.errors import PluginError
from bench.scoring.metrics import Floats, clipped, within_range

# Above every mean squared error in [0, 1]: an example with NaN in it takes what the others leave.
_UNUSABLE = 2.0


def assign(truth: ArrayLike, guess: ArrayLike) -> NDArray[np.int64]:
    """For each true example the guess it is scored with, or -1: (reading, example).

    The assignment is one to one and least in the sum of the clipped guesses' mean squared errors (Kuhn's assignment
    problem); every other metric is taken on it and has none of its own.  With fewer guesses than examples the rest
    is -1.  Raises `PluginError` where there are more, since the best of many would be a choice by the truth.
    """
    true, claimed = within_range(truth), np.asarray(guess)
    same = len(true) == len(claimed) and true.shape[2:] == claimed.shape[2:]
    if not same or claimed.shape[1] > true.shape[1]:
        raise PluginError(
            f"expected at most {true.shape[1]} reconstructions of shape {true.shape[2:]} for each of "
            f"{len(true)} readings, got {claimed.shape[:2]} of shape {claimed.shape[2:]}"
        )
    order = np.full(true.shape[:2], -1, np.int64)
    for row, cost in enumerate(_costs(true, claimed)):
        examples, guesses = linear_sum_assignment(cost)
        order[row, examples] = guesses
    return order


def in_order(guess: ArrayLike, order: NDArray[np.int64]) -> Floats:
    """The guesses in the order of the truth (reading, example, *shape); NaN where one is missing."""
    taken: Floats = np.asarray(guess, np.float64)[np.arange(len(order))[:, None], np.maximum(order, 0)]
    taken[order < 0] = np.nan
    return taken


def _costs(true: Floats, claimed: NDArray[np.floating]) -> Floats:
    """Mean squared errors (reading, example, guess)."""
    a = true.reshape(*true.shape[:2], -1)
    b = clipped(claimed).reshape(*claimed.shape[:2], -1)
    usable = np.isfinite(claimed.reshape(b.shape)).all(axis=-1)
    b = np.where(usable[..., None], b, 0)
    squares = (a**2).sum(-1)[:, :, None] + (b**2).sum(-1)[:, None, :] - 2 * a @ b.swapaxes(1, 2)
    return np.where(usable[:, None, :], squares / a.shape[-1], _UNUSABLE)
