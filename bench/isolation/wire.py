"""Answers from plug-in processes, read as data: bench's dataclasses, tensors, arrays.

A pickle can call any function when read.  This reader admits data classes and the few functions that build arrays and
tensors.
"""

import io
import pickle
from dataclasses import is_dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bench.errors import BenchError, NotApplicable, PluginError
from bench.kinds.base import Kind
from bench.kinds.known import named

_ARRAYS = {
    ("bench.isolation.wire", "tensor_of"),
    ("bench.kinds.known", "named"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),
}


def dump(value: Any) -> bytes:
    """The value as bytes; tensors travel as arrays."""
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=5).dump(value)
    return buffer.getvalue()


def load(content: bytes) -> Any:
    """The value from bytes; raises `PluginError` for content with code."""
    try:
        return _Unpickler(io.BytesIO(content)).load()
    except PluginError:
        raise
    except Exception as error:  # odd bytes make pickle raise anything
        raise PluginError(f"a plug-in's process answered what cannot be read: {error}") from None


def tensor_of(array: NDArray[Any]) -> torch.Tensor:
    """The tensor behind a travelled array."""
    return torch.from_numpy(np.array(array))  # a copy: the received buffer is read-only


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return tensor_of, (value.detach().cpu().contiguous().numpy(),)
        if isinstance(value, BenchError | NotApplicable):  # overrides any registered reducer
            return type(value), value.args
        if isinstance(value, Kind):
            return named, (value.name,)
        if isinstance(value, Enum):  # by getattr, in Python before 3.11.4
            return type(value), (value.value,)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ARRAYS:
            return super().find_class(module, name)
        if module.startswith("bench."):
            found = super().find_class(module, name)
            if isinstance(found, type) and (
                is_dataclass(found) or issubclass(found, BenchError | NotApplicable | Enum)
            ):
                return found
        raise PluginError(f"a plug-in's process answered with {module}.{name}, which is no data")
