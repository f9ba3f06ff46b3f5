"""Prior-only baselines: reconstructions from public examples and labels, without the gradient."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bench.kinds.base import Floats, Values


def prior_only_baselines(
    public_inputs: ArrayLike, public_labels: ArrayLike, labels: ArrayLike, values: Values
) -> dict[str, Floats]:
    """Return three prior-only baselines: reconstructions from public examples and labels, without the gradient, name →
    (reading, example, *shape).

    - `mean`: the mean public example.
    - `nearest`: the public example nearest to this mean. (RMSE favours a blurred mean, SSIM a real image.)
    - `class-mean`: the mean of the class in `labels` (reading, example), the true labels; `mean` for a class without
      examples.

    `public_inputs` is (example, *shape), `public_labels` (example,); `values` are the operations of the kind of data,
    which give mean and distance."""
    inputs, classes = values.checked(public_inputs), np.asarray(public_labels)
    wanted: NDArray[np.int64] = np.asarray(labels, np.int64)
    if not len(inputs):
        raise ValueError("prior-only baselines need public examples, got none")
    centre = values.centre(inputs)
    by_class = np.broadcast_to(centre, (*wanted.shape, *centre.shape)).copy()
    for label in np.intersect1d(wanted, classes):
        by_class[wanted == label] = values.centre(inputs[classes == label])
    nearest = inputs[values.apart(inputs[None], centre)[0].argmin()]
    return {
        "mean": np.broadcast_to(centre, by_class.shape).copy(),
        "nearest": np.broadcast_to(nearest, by_class.shape).copy(),
        "class-mean": by_class,
    }
