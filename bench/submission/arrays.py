"""A record's arrays against the record: named by their content, of its shapes, and as far apart as it says."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.errors import DataError
from bench.record.npz import read_npz
from bench.record.store import Record
from bench.sanitize import first_line
from bench.scoring.metrics import rmse, rmse_unclipped

UNPACKED = 2**28  # bytes of one file's arrays
_NEEDED, _KNOWN = {"truth", "reconstruction"}, {"truth", "reconstruction", "trail"}
_NEAR = 1e-4  # relative; absolute a tenth of it: arrays keep float32 of what was scored in float64
_HUGE = 1e18  # where float32 has no squares any more
Arrays = Mapping[str, NDArray[Any]]


def read(content: bytes) -> Arrays:
    """The arrays of an `.npz` from elsewhere; raises `DataError` in one line: no numbers, damaged, too large."""
    try:
        return read_npz(Path("its arrays"), limit=UNPACKED, content=content)
    except DataError as error:
        raise DataError(first_line(error).removeprefix("its arrays: ")) from None


def findings(record: Record, arrays: Arrays) -> Iterator[str]:
    """What does not fit between a record whose victims are well formed and its arrays."""
    if not set(arrays) >= _NEEDED or not set(arrays) <= _KNOWN:
        yield f"its arrays are {', '.join(sorted(arrays))[:80]}, not truth and reconstruction"
        return
    if any(array.dtype != np.float32 for array in arrays.values()):
        yield "its arrays are not float32"
        return
    truth, guess = arrays["truth"], arrays["reconstruction"]
    victims = record.victims
    wanted = (len(victims), len(victims[0]["pictures"]) if victims else 0)
    if truth.ndim < 3 or truth.shape[:2] != wanted or guess.shape != truth.shape or not truth.size:
        yield f"its arrays have shapes {truth.shape} and {guess.shape}, its pictures are {wanted}"
        return
    if "trail" in arrays:
        yield from _trail(record, arrays["trail"], truth.shape)
    broken = ~np.isfinite(guess).reshape(*wanted, -1).all(axis=-1)
    guess = np.where(broken.reshape(*wanted, *[1] * (truth.ndim - 2)), np.float32(np.nan), guess)
    try:
        measured = {"rmse": rmse(truth, guess), "rmse_unclipped": rmse_unclipped(truth, guess)}
    except ValueError as error:
        yield f"its truth is no truth: {first_line(error)}"
        return
    for name, values in measured.items():
        for row, victim in enumerate(victims):
            for number, picture in enumerate(victim["pictures"]):
                if not _near(picture[name], float(values[row, number])):
                    yield (
                        f"reading {row} picture {number}: {name} is {picture[name]}, "
                        f"its arrays give {values[row, number]:.6g}"
                    )
                    return  # the others of it are as wrong


def _near(said: float | None, measured: float) -> bool:
    if said is None or not np.isfinite(measured):
        return (said is None or said > _HUGE) and (not np.isfinite(measured) or measured > _HUGE)
    return bool(abs(said - measured) <= _NEAR * (abs(said) + 0.1))


def _trail(record: Record, trail: NDArray[Any], shape: tuple[int, ...]) -> Iterator[str]:
    marks = record.summary.get("trail_evaluations")
    count = len(marks) if isinstance(marks, list) else 0
    if trail.ndim != len(shape) + 1 or trail.shape[0] != count or trail.shape[2:] != shape[1:]:
        yield f"its trail has shape {trail.shape}, for {count} marks of {shape}"
    elif trail.shape[1] > shape[0]:
        yield f"its trail is of {trail.shape[1]} readings, it has {shape[0]}"
