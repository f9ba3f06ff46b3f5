"""CIFAR's published batches: old pickles, opened after their checksum agrees, and limited to numpy's names."""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy._core.multiarray import _reconstruct
from numpy.typing import NDArray

from bench.datasets.files import check_md5, read
from bench.errors import DataError

_LIMIT = 256 * 2**20


def _dtype(code: str, align: int = 0, copy: int = 1) -> np.dtype[Any]:
    """Old pickles hold numbers, and numpy expects booleans."""
    return np.dtype(code, bool(align), bool(copy))


# What the published files name, under numpy's old module name, and nothing else.
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _dtype,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed in a batch of pictures")
        return _ALLOWED[module, name]


def read_batch(path: Path, *, known_md5: str, label: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pictures (example, 3, 32, 32) and the labels under the key `label`.

    Raises `DataError` for a file with another checksum, before unpickling.
    """
    content = read(path, limit=_LIMIT)
    check_md5(path, content, known_md5)
    try:
        batch = _Unpickler(io.BytesIO(content), encoding="latin1").load()
        pictures = np.asarray(batch["data"], np.uint8).reshape(-1, 3, 32, 32)
        labels = np.asarray(batch[label], np.int64)
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, IndexError) as error:
        raise DataError(f"{path}: not a batch of CIFAR pictures ({error})") from None
    return pictures, labels
