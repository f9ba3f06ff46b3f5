"""Match each true example with a reconstruction, one to one, by the smallest total distance."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

from bench.errors import PluginError
from bench.kinds.base import Floats, Values

# Larger than every distance between examples, so an example with NaN is matched last.
_UNUSABLE = 2.0


def assign(truth: ArrayLike, guess: ArrayLike, values: Values) -> NDArray[np.int64]:
    """Match each true example with a reconstructed example, one to one. Return the number of the reconstructed example,
    (reading, example), -1 for none. `truth` and `guess` are the true and the reconstructed examples, (reading, example,
    *shape). `values` are the operations of the kind of data, which give the distance. The matching has the smallest sum
    of distances (Kuhn's assignment problem). Raises `PluginError` if `guess` has more examples than `truth`."""
    true, claimed = values.checked(truth), np.asarray(guess)
    same = len(true) == len(claimed) and true.shape[2:] == claimed.shape[2:]
    if not same or claimed.shape[1] > true.shape[1]:
        raise PluginError(
            f"expected at most {true.shape[1]} reconstructions of shape {true.shape[2:]} for each of "
            f"{len(true)} readings, got {claimed.shape[:2]} of shape {claimed.shape[2:]}"
        )
    order = np.full(true.shape[:2], -1, np.int64)
    for row, cost in enumerate(_costs(true, claimed, values)):
        examples, guesses = linear_sum_assignment(cost)
        order[row, examples] = guesses
    return order


def in_order(guess: ArrayLike, order: NDArray[np.int64]) -> Floats:
    """Put the reconstructed examples `guess` (reading, example, *shape) into the order of the true examples, for scores
    by pair. `order` (reading, example), from `assign`, is the number of the reconstructed example that belongs to each
    true example, -1 for none. A missing example becomes NaN."""
    taken: Floats = np.asarray(guess, np.float64)[np.arange(len(order))[:, None], np.maximum(order, 0)]
    taken[order < 0] = np.nan
    return taken


def _costs(true: Floats, claimed: NDArray[np.floating], values: Values) -> Floats:
    a = true.reshape(*true.shape[:2], -1)
    b = values.cleaned(claimed).reshape(*claimed.shape[:2], -1)
    usable = np.isfinite(claimed.reshape(b.shape)).all(axis=-1)
    b = np.where(usable[..., None], b, 0)
    return np.where(usable[:, None, :], values.distances(a, b), _UNUSABLE)
