"""One's own values at the border: gradients, labels and pictures, checked against model and shape.

Every fault is one `BenchError` line that says what was given and what was expected.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bench.errors import BenchError

Values = ArrayLike | Tensor
Range = tuple[float, float]
_ROUNDING = 1e-6  # a share of the range by which float32 pictures may leave it


def tensor(value: Values, what: str) -> Tensor:
    """A value as a tensor on the CPU without history; `what` starts the message."""
    try:
        return torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise BenchError(f"{what} is not an array of numbers ({first_line(error)})") from None


def floats(value: Values, what: str) -> Tensor:
    """A value as float32 on the CPU."""
    return tensor(value, what).float()


def gradients(
    given: Mapping[str, Values] | Sequence[Values], parameters: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Gradients as name → (reading, *shape), in the order and dtypes of `parameters`.

    `given` by name, or a list in that order; each (*shape), or (reading, *shape) in all of them.
    """
    if not isinstance(given, Mapping):
        if len(given) != len(parameters):
            raise BenchError(
                f"{len(given)} gradients for {len(parameters)} parameters; give one each in the order of "
                "model.parameters(), or a mapping by name"
            )
        given = dict(zip(parameters, given, strict=True))
    _same_names(given, parameters)
    found = {name: _gradient(name, given[name], parameter) for name, parameter in parameters.items()}
    several = [name for name in parameters if found[name].dim() > parameters[name].dim()]
    if several and len(several) < len(found):
        single = next(name for name in found if name not in several)
        raise BenchError(f"gradient of {several[0]!r} has an axis of readings, that of {single!r} has none")
    if not several:
        return {name: value[None] for name, value in found.items()}
    counts = {name: len(value) for name, value in found.items()}
    if len(set(counts.values())) > 1:
        least, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
        raise BenchError(
            f"{counts[least]} readings in the gradient of {least!r}, {counts[most]} in that of {most!r}"
        )
    return found


def _same_names(given: Mapping[str, Values], parameters: Mapping[str, Tensor]) -> None:
    missing = [name for name in parameters if name not in given]
    unknown = [name for name in given if name not in parameters]
    if not missing and not unknown:
        return
    fault = (
        f"no gradient of {missing[0]!r}" if missing else f"gradient of {unknown[0]!r}, which is no parameter"
    )
    raise BenchError(f"{fault}; given are {_some(given)}, the model's parameters are {_some(parameters)}")


def _gradient(name: str, value: Values | None, parameter: Tensor) -> Tensor:
    if value is None:
        raise BenchError(f"gradient of {name!r} is None; take it with the layer in use and not frozen")
    found, shape = tensor(value, f"gradient of {name!r}"), tuple(parameter.shape)
    if tuple(found.shape) != shape and (tuple(found.shape[1:]) != shape or not len(found)):
        raise BenchError(
            f"gradient of {name!r} has shape {tuple(found.shape)}; expected {shape}, or {('readings', *shape)}"
        )
    if not torch.isfinite(found).all():
        raise BenchError(f"gradient of {name!r} is not finite; take it again")
    return found.to(parameter.dtype)


def labels(given: Values, count: int, classes: int | None = None) -> Tensor:
    """`count` labels as whole numbers (count,), below `classes` where that is known."""
    found = tensor(given, "labels").reshape(-1)
    if len(found) != count:
        raise BenchError(f"{len(found)} labels for {count} pictures; give one each")
    whole = found.long()
    if count and (int(whole.min()) < 0 or (classes is not None and int(whole.max()) >= classes)):
        above = f"0..{classes - 1}" if classes is not None else "0 and above"
        raise BenchError(f"labels must lie in {above}, got {int(whole.min())} to {int(whole.max())}")
    return whole


def pictures(given: Values, like: tuple[int, ...], what: str = "truth") -> Tensor:
    """Examples as (reading, picture, *shape) = `like`, whatever leading axes they came with."""
    found, shape = floats(given, what), like[2:]
    if found.numel() != np.prod(like) or tuple(found.shape[-len(shape) :]) != shape:
        raise BenchError(
            f"{what} has shape {tuple(found.shape)}; expected {like}: (reading, picture, *shape), or the same "
            "examples in fewer axes"
        )
    return found.reshape(like)


def examples(given: Values, shape: tuple[int, ...], what: str) -> Tensor:
    """One example or more as (example, *shape)."""
    found = floats(given, what)
    if tuple(found.shape) == shape:
        found = found[None]
    if tuple(found.shape[1:]) != shape or not len(found):
        raise BenchError(
            f"{what}: shape {tuple(found.shape)}; expected (example, {', '.join(map(str, shape))})"
        )
    return found


def scaled(values: Tensor, value_range: Range, what: str) -> NDArray[np.float64]:
    """Pictures in `value_range` as [0, 1]; raises `BenchError` where they leave it."""
    low, high = value_range
    if not high > low:
        raise BenchError(f"value_range must be (low, high), got {value_range}")
    found = (values.double().numpy() - low) / (high - low)
    if not (found.min() >= -_ROUNDING and found.max() <= 1 + _ROUNDING):
        raise BenchError(
            f"{what} must lie in {low:g}..{high:g}, got {float(values.min()):g} to {float(values.max()):g}; "
            "scale it, or name its value_range"
        )
    clipped: NDArray[np.float64] = np.clip(found, 0, 1)
    return clipped


def first_line(error: Exception) -> str:
    """What an error of a library says, in one line."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _some(names: Mapping[str, Any]) -> str:
    return ", ".join([*list(names)[:4], *(["…"] if len(names) > 4 else [])]) or "none"
