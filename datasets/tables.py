"""Numeric columns: scaling to [0, 1], mean and deviation, all from the training part."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bench.datasets.base import Group


def scale(train: NDArray[np.float64], test: NDArray[np.float64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Scale the parts `train` and `test` (example, feature) to [0, 1], by each column's smallest and largest training
    value. Test values are clipped to the training range; a constant column becomes 0."""
    low, high = train.min(0), train.max(0)
    width = np.where(high > low, high - low, 1.0)
    scaled = [np.clip((part - low) / width, 0, 1).astype(np.float32) for part in (train, test)]
    return scaled[0], scaled[1]


def numeric_groups(names: Sequence[str], columns: Sequence[int], train: NDArray[np.float32]) -> tuple[Group, ...]:
    """Describe the numeric columns of a table: return a `Group` (a feature) per column, with the mean and standard
    deviation that standardise errors. A constant column has deviation 1.

    - `names`: names of the features.
    - `columns`: positions of the features in a table row.
    - `train` (example, feature): scaled training part, the source of mean and deviation."""
    means, deviations = train.mean(0, dtype=np.float64), train.std(0, dtype=np.float64)
    return tuple(
        Group(
            name=name,
            columns=(column,),
            categorical=False,
            mean=float(means[column]),
            deviation=float(deviations[column]) or 1.0,
        )
        for name, column in zip(names, columns, strict=True)
    )
