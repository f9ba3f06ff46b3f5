"""Reading files: a user's gradient in an `.npz` file.

value/<parameter>     gradient or update: (*shape), or (reading, *shape) for several readings
weight/<parameter>    the model's parameters at the gradient: (*shape); optional
label                 true labels, only if granted to the attacker: (example,) or (reading, example)
meta                  the fields of `Meta` as JSON, stored as text or uint8"""

import io
import json
import re
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, TypeAdapter, ValidationError, field_validator
from pydantic.dataclasses import dataclass as checked_dataclass

from bench.errors import DataError, RecordError
from bench.record.files import write_atomically
from bench.record.npz import Arrays, read_npz
from bench.sanitize import first_error, first_line

LIMIT = 2 * 2**30  # bytes, unpacked, of a whole file
_META_LIMIT = 2**16  # bytes
_NAMES = re.compile(r"(?:(?:value|weight)/)?(?!\.{1,2}\.npy)[^/\\]+\.npy", re.DOTALL)


@checked_dataclass(frozen=True, slots=True, kw_only=True, config={"extra": "forbid"})
class Loss:
    """Loss function of a client's training, as a reading file stores it: the name of a loss in torch.nn, with its
    options."""

    name: Literal["CrossEntropyLoss", "NLLLoss", "BCEWithLogitsLoss", "MSELoss"]
    """Name of the loss in torch.nn."""
    smoothing: float = Field(default=0.0, ge=0, le=1)
    """Label smoothing of the cross entropy."""
    weight: tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...] | None = None
    """Weight of each class; None: equal weights."""
    positive: tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...] | None = None
    """Weight of each positive class, `pos_weight` of the binary cross entropy; None: 1."""
    total: bool = False
    """True for the sum over a batch; False for the mean."""


@checked_dataclass(frozen=True, slots=True, kw_only=True, config={"extra": "forbid"})
class Meta:
    """Facts about a user's gradient that the attacker knows: shapes, classes and the client's training."""

    shape: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=1)
    """Shape of an example."""
    classes: int = Field(ge=2)
    """Number of classes."""
    batch: int = Field(default=1, ge=1)
    """B, examples per local step."""
    steps: int = Field(default=1, ge=1)
    """L, local steps."""
    rate: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """η, local learning rate."""
    unit: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Factor from gradients to the stored values: 1 for gradients, η for weight differences w_0 - w_L."""
    value_range: tuple[float, float] = (0.0, 1.0)
    """Smallest and largest possible value of the model's inputs."""
    client_examples: int | None = Field(default=None, ge=1)
    """Number of the client's distinct examples; None: no example repeats."""
    ragged: bool = False
    """True if each epoch ends with a smaller batch, because `batch` does not divide the examples."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """Momentum of the client's SGD."""
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight decay of the client's SGD."""
    frozen: tuple[str, ...] = ()
    """Names of frozen parameters: they have weights in the file, but no values."""
    loss: Loss | None = None
    """The training's loss with its options; None: the mean cross entropy."""

    @field_validator("value_range")
    @classmethod
    def _ascending(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not (isfinite(value[0]) and isfinite(value[1]) and value[0] < value[1]):
            raise ValueError("it must be (low, high)")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingFile:
    """Content of a reading file, by which a user keeps a gradient for later attacks (`bench attack --reading`): the
    gradient, the model's weights, and the facts that the attacker knows."""

    values: Arrays
    """Gradients or updates by parameter name."""
    weights: Arrays
    """Model weights by parameter name; empty if the file has none."""
    labels: NDArray[Any] | None
    """True labels, (example,) or (reading, example), which the attacker will know; None: not granted."""
    meta: Meta
    """Facts that the attacker knows."""


def checked_meta(**fields: Any) -> Meta:
    """Make a `Meta` (facts about a user's gradient that the attacker knows) from its `fields`. Raises `RecordError`
    with the name of a wrong field."""
    try:
        return Meta(**fields)
    except ValidationError as error:
        raise RecordError(f"reading: {first_error(error)}") from None


def save(
    path: Path,
    values: Mapping[str, ArrayLike],
    meta: Meta,
    *,
    weights: Mapping[str, ArrayLike] | None = None,
    labels: ArrayLike | None = None,
) -> None:
    """Write a reading file, which keeps a user's gradient for later attacks (`bench attack --reading`), atomically.

    - `values`: gradients or updates, name → (*shape) or (reading, *shape).
    - `meta`: facts that the attacker knows.
    - `weights`: the model's weights, name → (*shape); None writes none.
    - `labels`: true labels, which the attacker will know; None grants none."""
    arrays = {f"value/{name}": np.asarray(array) for name, array in values.items()}
    arrays |= {f"weight/{name}": np.asarray(array) for name, array in (weights or {}).items()}
    if labels is not None:
        arrays["label"] = np.asarray(labels)
    arrays["meta"] = np.frombuffer(json.dumps(asdict(meta)).encode(), np.uint8)
    save_arrays(path, arrays)


def load(path: Path) -> ReadingFile:
    """Read and check a reading file (a user's gradient for attacks); raises `RecordError` with the file, the array and
    a remedy."""
    arrays = load_arrays(path)
    for name in arrays:
        if name not in ("label", "meta") and not name.startswith(("value/", "weight/")):
            raise RecordError(f"{path}: unknown array {name!r}; it takes value/…, weight/…, label and meta")
    values = _below(arrays, "value/")
    if not values:
        raise RecordError(f"{path}: no array value/<parameter>; save each parameter's gradient under it")
    if "meta" not in arrays:
        raise RecordError(f"{path}: no array 'meta'; save with bench.own.files.save, or api.save_reading")
    return ReadingFile(
        values=values, weights=_below(arrays, "weight/"), labels=arrays.get("label"), meta=_meta(arrays["meta"], path)
    )


def save_arrays(path: Path, arrays: Mapping[str, ArrayLike]) -> None:
    """Write `arrays`, name → values, as an `.npz` file, atomically."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
    write_atomically(path, buffer.getvalue())


def load_arrays(path: Path, *, limit: int = LIMIT) -> Arrays:
    """Read an untrusted `.npz` file as name → array with finite numbers; only `meta` may be text. `limit` is the
    largest size in bytes. Raises `RecordError` for text, non-finite values, object arrays, and a missing, damaged or
    too large file."""
    try:
        arrays = read_npz(path, limit=limit, names=_NAMES)
    except DataError as error:
        raise RecordError(str(error)) from None
    for name, array in arrays.items():
        if name != "meta" and array.dtype.kind in "SU":
            raise RecordError(f"{path}: {name} holds {array.dtype}, not numbers; save it as float32")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise RecordError(f"{path}: {name} has values that are not finite; take the gradient again")
    return arrays


def _below(arrays: Arrays, prefix: str) -> Arrays:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _meta(array: NDArray[Any], path: Path) -> Meta:
    if array.nbytes > _META_LIMIT:
        raise RecordError(f"{path}: meta has {array.nbytes} bytes, at most {_META_LIMIT}; it is a JSON object")
    try:
        text = str(array.item()) if array.dtype.kind == "U" else array.tobytes().decode().rstrip("\0")
        return TypeAdapter(Meta).validate_json(text)
    except ValidationError as error:
        raise RecordError(
            f"{path}: meta: {first_error(error)}; it is a JSON object with shape, classes, batch, steps, rate, unit, "
            "value_range"
        ) from None
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}: meta is not text ({first_line(error)}); it is a JSON object") from None
