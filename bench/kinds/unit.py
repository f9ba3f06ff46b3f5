"""Arithmetic on numbers in [0, 1], for pixels and scaled columns."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bench.kinds.base import Array, Floats

LEVELS = np.float32(255)  # of uint8


def within_range(truth: ArrayLike) -> Floats:
    """Return the values of true examples as float64; raises `ValueError` for values outside [0, 1]."""
    array = np.asarray(truth, np.float64)
    if array.size and not (array.min() >= 0 and array.max() <= 1):
        raise ValueError(f"examples must lie in [0, 1], got {array.min():g} to {array.max():g}; scale them")
    return array


def clipped(guess: ArrayLike) -> Floats:
    """Return the values of the reconstruction `guess` as float64, clipped to [0, 1]."""
    return np.clip(np.asarray(guess, np.float64), 0, 1)


def mse(truth: ArrayLike, guess: ArrayLike) -> Floats:
    """Return the mean squared error of each example between `truth` and `guess`, both (reading, example, *shape):
    (reading, example). The mean is over an example's values, which are not clipped."""
    with np.errstate(over="ignore"):  # a diverged example may be too large to square: inf is the answer
        squares = (np.asarray(truth, np.float64) - np.asarray(guess, np.float64)) ** 2
        means: Floats = squares.reshape(*squares.shape[:2], -1).mean(axis=-1)
    return means


@dataclass(frozen=True, slots=True)
class Unit:
    """Operations on example values in [0, 1], stored as floats or as uint8 levels 0..255."""

    def floats(self, stored: NDArray[Any]) -> NDArray[np.float32]:
        scale = LEVELS if stored.dtype == np.uint8 else np.float32(1)
        values: NDArray[np.float32] = np.divide(stored, scale, dtype=np.float32)
        return values

    def fault(self, stored: NDArray[Any]) -> str | None:
        if stored.dtype == np.uint8:
            return None
        if stored.dtype.kind != "f":
            return f"values are {stored.dtype}; uint8 levels 0..255 or floats in [0, 1] expected"
        if not bool(np.all((stored >= 0) & (stored <= 1))):
            span = f"{np.min(stored)} to {np.max(stored)}"
            return f"values must lie in [0, 1], got {span}; scale them before packing"
        return None

    def checked(self, truth: ArrayLike) -> Floats:
        return within_range(truth)

    def cleaned(self, guess: ArrayLike) -> Floats:
        return clipped(guess)

    def apart(self, truth: ArrayLike, guess: ArrayLike) -> Floats:
        return mse(truth, guess)

    def distances(self, first: Floats, second: Floats) -> Floats:
        """Return mean squared differences between the examples `first` (..., n, value) and `second` (..., m, value):
        (..., n, m), computed as a² + b² - 2ab, exact to about 1e-9."""
        squares = (first**2).sum(-1)[..., :, None] + (second**2).sum(-1)[..., None, :]
        means: Floats = (squares - 2 * first @ second.swapaxes(-1, -2)) / first.shape[-1]
        return means

    def centre(self, examples: Array) -> Array:
        mean: Array = examples.mean(0)
        return mean

    def draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[Any]:
        return random.random(shape)


UNIT = Unit()
