"""Checks for the arrays in a data file: names, dtypes, shapes."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.errors import DataError
from bench.record.npz import Arrays


def required(arrays: Arrays, path: Path, *names: str) -> list[NDArray[Any]]:
    """Return the arrays with these `names`, in this order, from the content of a data file. Raises `DataError` with the
    missing names.

    - `arrays`: content of the file, name → array; `path`: the file, for the message."""
    missing = [name for name in names if name not in arrays]
    if missing:
        raise DataError(f"{path}: lacks {', '.join(missing)}; it holds {', '.join(sorted(arrays)) or 'nothing'}")
    return [arrays[name] for name in names]


def channels_first(images: NDArray[Any], path: Path, name: str) -> NDArray[np.uint8]:
    """Turn uint8 `images` (example, height, width, channel) into contiguous (example, channel, height, width). Raises
    `DataError` for another type or shape; `path` and `name` say in the message which file and array is wrong."""
    if images.dtype != np.uint8 or images.ndim != 4:
        raise DataError(f"{path}: {name} must be uint8 N×H×W×C, got {images.dtype} {images.shape}")
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))


def class_labels(labels: NDArray[Any], path: Path, name: str) -> NDArray[np.int64]:
    """Return `labels` (example,) as int64. Raises `DataError` unless they are integers ≥ 0 on a single axis; `path` and
    `name` say in the message which file and array is wrong."""
    if labels.dtype.kind not in "iu" or labels.ndim != 1 or (labels.size and int(labels.min()) < 0):
        raise DataError(
            f"{path}: {name} must be one integer ≥ 0 an example, got {labels.dtype} {labels.shape}; "
            "number the classes from 0"
        )
    return labels.astype(np.int64)
