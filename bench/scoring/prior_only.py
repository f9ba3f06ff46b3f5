"""Scoring: what anyone could claim from public examples, and the labels, to be beaten by every attack."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bench.scoring.metrics import Floats, within_range


def prior_only_baselines(public_inputs: ArrayLike, public_labels: ArrayLike, labels: ArrayLike) -> dict[str, Floats]:
    """Three reconstructions, name → (reading, example, *shape), from the public split alone.

    `mean` is its mean example; `nearest` the public example nearest to that mean (a blurred mean flatters RMSE, a real
    image SSIM); `class-mean` the mean of the class in `labels` (reading, example), the true ones; a class without
    public examples gives the mean.  `public_inputs` (example, *shape) in [0, 1], `public_labels` (example,).
    """
    inputs, classes = within_range(public_inputs), np.asarray(public_labels)
    wanted: NDArray[np.int64] = np.asarray(labels, np.int64)
    if not len(inputs):
        raise ValueError("prior-only baselines need public examples, got none")
    mean = inputs.mean(axis=0)
    distances = ((inputs - mean) ** 2).reshape(len(inputs), -1).sum(axis=1)
    by_class = np.broadcast_to(mean, (*wanted.shape, *mean.shape)).copy()
    for label in np.intersect1d(wanted, classes):
        by_class[wanted == label] = inputs[classes == label].mean(axis=0)
    return {
        "mean": np.broadcast_to(mean, by_class.shape).copy(),
        "nearest": np.broadcast_to(inputs[distances.argmin()], by_class.shape).copy(),
        "class-mean": by_class,
    }
