"""Conversion of a Flower client's received and sent weights to tensors by name."""

import io
from typing import Any

import numpy as np
from torch import Tensor, nn

from bench.errors import BenchError
from bench.own.copies import unwrapped
from bench.own.weights import named_state
from bench.sanitize import first_line


def from_flower(before: Any, after: Any, model: nn.Module) -> dict[str, Any]:
    """Convert the weights that a Flower client received and sent to the arguments `before`, `after` and `model` of
    `api.reading`, with weights and buffers by name.

    - `before`, `after`: Flower's `ArrayRecord` or `Parameters`, or lists of arrays in the order of `model.state_dict()`
      or `model.parameters()`.
    - `model`: the client's model, which gives names and shapes.

    Raises `BenchError` for values that do not fit the model."""
    return {"before": _state(before, model, "before"), "after": _state(after, model, "after"), "model": model}


def _state(given: Any, model: nn.Module, what: str) -> dict[str, Tensor]:
    if hasattr(given, "to_torch_state_dict"):  # flwr's ArrayRecord
        given = given.to_torch_state_dict()
    elif hasattr(given, "tensor_type") and hasattr(given, "tensors"):  # flwr's Parameters
        try:
            given = [np.load(io.BytesIO(each), allow_pickle=False) for each in given.tensors]
        except (ValueError, EOFError, OSError) as error:
            raise BenchError(f"{what}: Parameters that hold no NumPy arrays ({first_line(error)})") from None
    return named_state(given, unwrapped(model), what)
