"""A record's arrays against the record: named by their content, of its shapes, and as far apart as it says."""

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

UNPACKED = 2**28  # bytes of one file's arrays
_NEEDED, _KNOWN = {"truth", "reconstruction"}, {"truth", "reconstruction", "trajectory"}
_NEAR = 1e-4  # relative; absolute a tenth of it: arrays keep float32 of what was scored in float64
_HUGE = 1e18  # where float32 has no squares any more
Arrays = Mapping[str, NDArray[Any]]


def read(content: bytes) -> Arrays:
    """The arrays of an `.npz` from elsewhere; raises `DataError` in one line: no numbers, damaged, too large."""
    try:
        return read_npz(Path("its arrays"), limit=UNPACKED, content=content)
    except DataError as error:
        raise DataError(first_line(error).removeprefix("its arrays: ")) from None


def findings(result: AttackResult, arrays: Arrays) -> Iterator[str]:
    """What does not fit between a result whose readings have equally many examples and its arrays."""
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
                    return  # the others of it are as wrong


def _near(stated: float | None, measured: float) -> bool:
    if stated is None or not np.isfinite(measured):
        return (stated is None or stated > _HUGE) and (not np.isfinite(measured) or measured > _HUGE)
    return bool(abs(stated - measured) <= _NEAR * (abs(stated) + 0.1))


def _trajectory(result: AttackResult, arrays: NDArray[Any], shape: tuple[int, ...]) -> Iterator[str]:
    """`arrays` (mark, reading, example, *shape) of the first readings, at the marks that the result names."""
    count = len(result.trajectory.evaluations) if result.trajectory else 0
    if arrays.ndim != len(shape) + 1 or arrays.shape[0] != count or arrays.shape[2:] != shape[1:]:
        yield f"its trajectory has shape {arrays.shape}, for {count} marks of {shape}"
    elif arrays.shape[1] > shape[0]:
        yield f"its trajectory is of {arrays.shape[1]} readings, it has {shape[0]}"
