"""Scoring: what anyone could claim from public examples, and the labels, to be beaten by every attack."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bench.scoring.metrics import Floats, within_range


def prior_only_baselines(
    public_inputs: ArrayLike, public_labels: ArrayLike, inferred_labels: ArrayLike
) -> dict[str, Floats]:
    """Three reconstructions, name → (reading, example, *shape), from the public split alone.

    `mean` is its mean example; `nearest` the public example nearest to that mean (a blurred mean flatters RMSE, a real
    image SSIM); `class-mean` the mean of the class in `inferred_labels` (reading, example), which are the attacker's;
    -1, or a class without public examples, gives the mean.  `public_inputs` (example, *shape) in [0, 1],
    `public_labels` (example,).
    """
    inputs, labels = within_range(public_inputs), np.asarray(public_labels)
    inferred: NDArray[np.int64] = np.asarray(inferred_labels, np.int64)
    if not len(inputs):
        raise ValueError("prior-only baselines need public examples, got none")
    mean = inputs.mean(axis=0)
    distances = ((inputs - mean) ** 2).reshape(len(inputs), -1).sum(axis=1)
    by_class = np.broadcast_to(mean, (*inferred.shape, *mean.shape)).copy()
    for label in np.intersect1d(inferred, labels):
        by_class[inferred == label] = inputs[labels == label].mean(axis=0)
    return {
        "mean": np.broadcast_to(mean, by_class.shape).copy(),
        "nearest": np.broadcast_to(inputs[distances.argmin()], by_class.shape).copy(),
        "class-mean": by_class,
    }
