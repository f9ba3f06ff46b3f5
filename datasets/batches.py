"""CIFAR's published batches: old pickles, read only after a checksum, and restricted to NumPy's arrays."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy._core.multiarray import _reconstruct
from numpy.typing import NDArray

from bench import unpickle
from bench.datasets.files import check_md5, read
from bench.errors import DataError

_LIMIT = 256 * 2**20


def _dtype(code: str, align: int = 0, copy: int = 1) -> np.dtype[Any]:
    return np.dtype(code, bool(align), bool(copy))


# Names in the published files, with NumPy's old module name.
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _dtype,
}


def read_batch(path: Path, *, known_md5: str, label: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read a batch file of CIFAR, a pickle: images (example, 3, 32, 32), and the labels (example,).

    - `known_md5`: the file's published checksum. Raises `DataError` for a file with another checksum, before
      unpickling.
    - `label`: key of the labels in the pickle, such as "labels" or "fine_labels"."""
    content = read(path, limit=_LIMIT)
    check_md5(path, content, known_md5)
    try:
        batch = unpickle.load(content, _ALLOWED, encoding="latin1")
        pictures = np.asarray(batch["data"], np.uint8).reshape(-1, 3, 32, 32)
        labels = np.asarray(batch[label], np.int64)
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, IndexError) as error:
        raise DataError(f"{path}: not a batch of CIFAR pictures ({error})") from None
    return pictures, labels
