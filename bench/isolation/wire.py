"""Messages from a plug-in process, unpickled as data: dataclasses, enums, errors, arrays and tensors only."""

import io
import pickle
from dataclasses import is_dataclass
from enum import Enum
from pathlib import PosixPath
from typing import Any

import numpy as np
import torch
from numpy._core.multiarray import _reconstruct, scalar
from numpy._core.numeric import _frombuffer  # type: ignore[attr-defined]
from numpy.typing import NDArray

from bench import unpickle
from bench.errors import BenchError, NotApplicable, PluginError
from bench.kinds.base import Kind
from bench.kinds.known import named


def dump(value: Any) -> bytes:
    """Return `value` as bytes to send to another process, which reads the bytes by `load`; tensors become arrays."""
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=5).dump(value)
    return buffer.getvalue()


def load(content: bytes) -> Any:
    """Read a value from the bytes of an untrusted process. The values may be wrong, but no code of the process runs.
    Raises `PluginError` for damaged bytes, and for types other than numbers, texts, containers, arrays, dataclasses,
    enums and errors."""
    try:
        return unpickle.load(content, _ARRAYS, _is_data)
    except Exception as error:  # damaged bytes raise many types
        raise PluginError(f"a plug-in's process answered what cannot be read: {error}") from None


def tensor_of(array: NDArray[Any]) -> torch.Tensor:
    """Turn a read-only `array` from another process into a tensor with a writable copy of the values."""
    return torch.from_numpy(np.array(array))


def _is_data(found: type) -> bool:
    return is_dataclass(found) or issubclass(found, BenchError | NotApplicable | Enum)


_ARRAYS = {
    ("bench.isolation.wire", "tensor_of"): tensor_of,
    ("bench.kinds.known", "named"): named,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy._core.numeric", "_frombuffer"): _frombuffer,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "scalar"): scalar,
    ("pathlib", "PosixPath"): PosixPath,
    ("pathlib._local", "PosixPath"): PosixPath,
}


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return tensor_of, (value.detach().cpu().contiguous().numpy(),)
        if isinstance(value, BenchError | NotApplicable):  # before any other registered reducer
            return type(value), value.args
        if isinstance(value, Kind):
            return named, (value.name,)
        if isinstance(value, Enum):  # by getattr, in Python before 3.11.4
            return type(value), (value.value,)
        return NotImplemented
