"""The check of a record's arrays (true and reconstructed examples): shapes, types, and distances."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.errors import DataError
from bench.record.metrics import RMSE, RMSE_UNCLIPPED
from bench.record.npz import read_npz
from bench.record.schema import AttackResult
from bench.sanitize import first_line
from bench.scoring.metrics import MEASURES

UNPACKED = 2**28  # bytes of arrays in a file
_NEEDED, _KNOWN = {"truth", "reconstruction"}, {"truth", "reconstruction", "trajectory"}
_NEAR = 1e-4  # relative (absolute: a tenth): scores used float64, arrays keep float32
_HUGE = 1e18  # squares above this overflow float32
Arrays = Mapping[str, NDArray[Any]]


def read(content: bytes) -> Arrays:
    """Read the untrusted `content` of an `.npz` file as name → array; raises `DataError` for damaged, non-numeric or
    too large arrays."""
    try:
        return read_npz(Path("its arrays"), limit=UNPACKED, content=content)
    except DataError as error:
        raise DataError(first_line(error).removeprefix("its arrays: ")) from None


def findings(result: AttackResult, arrays: Arrays) -> Iterator[str]:
    """Yield a line of text for each contradiction between the figures in `result` and its `arrays` (true and
    reconstructed examples, name → values), such as an RMSE that the arrays do not give. All readings (observed updates)
    must have equally many examples."""
    if not set(arrays) >= _NEEDED or not set(arrays) <= _KNOWN:
        yield f"its arrays are {', '.join(sorted(arrays))[:80]}, not truth and reconstruction"
        return
    if any(array.dtype != np.float32 for array in arrays.values()):
        yield "its arrays are not float32"
        return
    truth, guess = arrays["truth"], arrays["reconstruction"]
    shape = (len(result.readings), len(result.readings[0].examples) if result.readings else 0)
    if truth.ndim < 3 or truth.shape[:2] != shape or guess.shape != truth.shape or not truth.size:
        yield f"its arrays have shapes {truth.shape} and {guess.shape}, its examples are {shape}"
        return
    if "trajectory" in arrays:
        yield from _trajectory(result, arrays["trajectory"], truth.shape)
    broken = ~np.isfinite(guess).reshape(*shape, -1).all(axis=-1)
    guess = np.where(broken.reshape(*shape, *[1] * (truth.ndim - 2)), np.float32(np.nan), guess)
    try:
        result.data_kind.values.checked(truth)
        measured = {
            metric.name: MEASURES[metric.name](truth, guess, ())
            for metric in (RMSE, RMSE_UNCLIPPED)
            if result.data_kind in metric.kinds
        }
    except ValueError as error:
        yield f"its truth is no truth: {first_line(error)}"
        return
    for name, values in measured.items():
        for row, reading in enumerate(result.readings):
            for number, example in enumerate(reading.examples):
                stated, value = getattr(example, name), float(values[row, number])
                if not _near(stated, value):
                    yield f"reading {row} example {number}: {name} is {stated}, its arrays give {value:.6g}"
                    return  # the record's other distances are likely wrong too


def _near(stated: float | None, measured: float) -> bool:
    if stated is None or not np.isfinite(measured):
        return (stated is None or stated > _HUGE) and (not np.isfinite(measured) or measured > _HUGE)
    return bool(abs(stated - measured) <= _NEAR * (abs(stated) + 0.1))


def _trajectory(result: AttackResult, arrays: NDArray[Any], shape: tuple[int, ...]) -> Iterator[str]:
    """Yield contradictions between the trajectory `arrays` and the result. The expected shape is (snapshot, reading,
    example, *shape); `shape` is the shape of the true examples."""
    count = len(result.trajectory.evaluations) if result.trajectory else 0
    if arrays.ndim != len(shape) + 1 or arrays.shape[0] != count or arrays.shape[2:] != shape[1:]:
        yield f"its trajectory has shape {arrays.shape}, for {count} marks of {shape}"
    elif arrays.shape[1] > shape[0]:
        yield f"its trajectory is of {arrays.shape[1]} readings, it has {shape[0]}"
