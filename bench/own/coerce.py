"""Conversion of users' gradients, labels and examples to tensors, checked against model and example shape.

Every error is a `BenchError` with the given and the expected value in a line."""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bench.errors import BenchError
from bench.sanitize import first_line

Values = ArrayLike | Tensor
Range = tuple[float, float]
ZERO_TO_ONE: Range = (0.0, 1.0)
_ROUNDING = 1e-6  # share of the range by which float32 values may exceed the range


def tensor(value: Values, what: str) -> Tensor:
    """Convert a user's array `value` to a detached tensor on the CPU. Raises `BenchError` for a value without numbers;
    `what` is the value's name in the message."""
    try:
        return torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise BenchError(f"{what} is not an array of numbers ({first_line(error)})") from None


def gradients(
    values: Mapping[str, Values] | Sequence[Values],
    parameters: Mapping[str, Tensor],
    state: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Check a user's gradients, and convert them to name → (reading, *shape), in the order and dtypes of `parameters`.

    - `values`: a mapping by name, or a list in the order of `parameters`. Each array is (*shape), or all arrays are
      (reading, *shape).
    - `parameters`: the model's parameters, name → (*shape).
    - `state`: the model's parameters and buffers, for a better error message; None leaves it out.

    Raises `BenchError` for gradients that do not fit the parameters."""
    if not isinstance(values, Mapping):
        if not isinstance(values, Sequence):
            raise BenchError(f"gradients are a mapping by name or a list, not a {type(values).__name__}")
        if len(values) != len(parameters):
            raise BenchError(list_fault(len(values), parameters, state or {}))
        values = dict(zip(parameters, values, strict=True))
    faults = [f"no gradient of {name!r}" for name in parameters if name not in values]
    faults += [f"gradient of {name!r}, which is no parameter" for name in values if name not in parameters]
    if faults:
        names = f"given are {_some(values)}, the model's parameters are {_some(parameters)}"
        raise BenchError(f"{faults[0]}; {names}")
    tensors = {name: _gradient(name, values[name], parameter) for name, parameter in parameters.items()}
    several = [name for name in parameters if tensors[name].dim() > parameters[name].dim()]
    if not several:
        return {name: value[None] for name, value in tensors.items()}
    if single := next((name for name in tensors if name not in several), None):
        raise BenchError(f"gradient of {several[0]!r} has an axis of readings, that of {single!r} has none")
    counts = {name: len(value) for name, value in tensors.items()}
    if len(set(counts.values())) > 1:
        (least, few), *_, (most, many) = sorted(counts.items(), key=itemgetter(1))
        raise BenchError(f"{few} readings in the gradient of {least!r}, {many} in that of {most!r}")
    return tensors


def list_fault(count: int, parameters: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> str:
    """Return the error message for a list of `count` gradients whose number differs from the number of the model's
    `parameters`. `state` holds parameters and buffers: if `count` is the size of `state`, the message says that buffers
    have no gradients."""
    buffers = [name for name in state if name not in parameters]
    if count == len(state) and buffers:
        names = ", ".join(buffers[:3]) + (", …" if len(buffers) > 3 else "")
        return (
            f"{count} gradients for {len(parameters)} parameters: {len(buffers)} of them are buffers ({names}), which "
            "have none; give whole models as before= and after="
        )
    return (
        f"{count} gradients for {len(parameters)} parameters; give one each in the order of model.parameters(), or a "
        "mapping by name"
    )


def _gradient(name: str, value: Values | None, parameter: Tensor) -> Tensor:
    if value is None:
        raise BenchError(f"gradient of {name!r} is None; take it with the layer in use and not frozen")
    gradient, shape = tensor(value, f"gradient of {name!r}"), tuple(parameter.shape)
    if gradient.is_sparse:
        gradient = gradient.to_dense()
    if gradient.is_complex() or gradient.dtype == torch.bool:
        raise BenchError(f"gradient of {name!r} holds {str(gradient.dtype).removeprefix('torch.')}, not real numbers")
    if tuple(gradient.shape) != shape and (tuple(gradient.shape[1:]) != shape or not len(gradient)):
        raise BenchError(
            f"gradient of {name!r} has shape {tuple(gradient.shape)}; expected {shape}, or {('readings', *shape)}"
        )
    cast = gradient.to(parameter.dtype)
    if not torch.isfinite(cast).all():
        raise BenchError(f"gradient of {name!r} is not finite; take it again")
    return cast


def labels(values: Values, count: int, classes: int | None = None) -> Tensor:
    """Convert a user's labels, an array with any axes, to class numbers (count,). Raises `BenchError` unless there are
    `count` labels, and for labels outside 0 to `classes` - 1; `classes` None sets no upper limit. One-hot rows (…,
    `classes`) count as class numbers."""
    array = tensor(values, "labels")
    if classes is not None and array.ndim > 1 and array.shape[-1] == classes and array.numel() == count * classes:
        if bool(((array == 0) | (array == 1)).all()) and bool((array.sum(-1) == 1).all()):
            array = array.argmax(-1)
        elif count != array.numel():
            raise BenchError("labels are classes, or one-hot rows; mixed labels have no single class")
    array = array.reshape(-1)
    if len(array) != count:
        raise BenchError(f"{len(array)} labels for {count} examples; give one each")
    integers = array.long()
    if array.is_floating_point() and bool((array != integers).any()):
        raise BenchError(f"labels are classes, whole numbers from 0; got {float(array[array != integers][0]):g}")
    if count and (int(integers.min()) < 0 or (classes is not None and int(integers.max()) >= classes)):
        above = f"0..{classes - 1}" if classes is not None else "0 and above"
        raise BenchError(f"labels must lie in {above}, got {int(integers.min())} to {int(integers.max())}")
    return integers


def like_reading(values: Values, like: tuple[int, ...], what: str = "truth") -> Tensor:
    """Reshape a user's examples, with any leading axes, to the shape `like`, (reading, example, *shape). Raises
    `BenchError` for another shape or values that are not finite; `what` is the name of the values in the message."""
    batch, shape = tensor(values, what).float(), like[2:]
    if not torch.isfinite(batch).all():
        raise BenchError(f"{what} has values that are not finite")
    if batch.numel() != np.prod(like) or tuple(batch.shape[-len(shape) :]) != shape:
        raise BenchError(
            f"{what} has shape {tuple(batch.shape)}; expected {like}: (reading, example, *shape), or the same "
            "examples in fewer axes"
        )
    return batch.reshape(like)


def examples(values: Values, shape: tuple[int, ...], what: str) -> Tensor:
    """Convert a user's examples to (example, *shape), with the shape `shape` of an example; a single example without
    the first axis is accepted. Raises `BenchError` for another shape or values that are not finite; `what` is the name
    of the values in the message."""
    batch = tensor(values, what).float()
    if not torch.isfinite(batch).all():
        raise BenchError(f"{what} has values that are not finite")
    if tuple(batch.shape) == shape:
        batch = batch[None]
    if tuple(batch.shape[1:]) != shape or not len(batch):
        expected = f"(example, {', '.join(map(str, shape))})"
        raise BenchError(f"{what}: shape {tuple(batch.shape)}; expected {expected}")
    return batch


def scaled(values: Tensor, value_range: Range, what: str) -> NDArray[np.float64]:
    """Map the examples `values` from `value_range` (least, greatest value) to [0, 1]. Raises `BenchError` for values
    outside the range; `what` is the name of the values in the message."""
    low, high = value_range
    if not high > low:
        raise BenchError(f"value_range must be (low, high), got {value_range}")
    shares = (values.double().numpy() - low) / (high - low)
    if not (shares.min() >= -_ROUNDING and shares.max() <= 1 + _ROUNDING):
        raise BenchError(
            f"{what} must lie in {low:g}..{high:g}, got {float(values.min()):g} to {float(values.max()):g}; "
            "scale it, or name its value_range"
        )
    clipped: NDArray[np.float64] = np.clip(shares, 0, 1)
    return clipped


def integers(values: Values | None, what: str) -> str:
    """Test a user's array for integers, which may be token ids of a text instead of pixels or columns. Return the
    array's name `what` for a later message if `values` holds integers; otherwise, and for None, an empty text."""
    kind = "" if values is None else np.asarray(tensor(values, what)).dtype.kind
    return what if kind and kind in "iu" else ""


def _some(names: Mapping[str, Any]) -> str:
    return ", ".join([*list(names)[:4], *(["…"] if len(names) > 4 else [])]) or "none"
