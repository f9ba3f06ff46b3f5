"""Scores that tell two worlds (neighbouring data sets) apart, learned from released values: projections on the
difference of means, and the spread."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.audit.bounds import Values

NAMES = ("whitened difference of means", "difference of means", "spread")
_WHOLE = 64  # values up to which covariances are estimated
_PER_VALUE = 4  # least runs per value for covariances
_RIDGE = 1e-9  # of each value's variance
_EXACT = 1e-9  # relative deviation below which a value counts as free of noise


class Moments:
    """Running mean and (co)variance of the values that a pipeline releases on a data set (a world); memory does not
    grow with the number of runs. `origin` (value,) is a point near the values, subtracted from all values against
    rounding errors."""

    def __init__(self, origin: Values) -> None:
        self._origin = origin.copy()  # near the mean: squares of large values would lose digits
        self._sum = np.zeros_like(origin)
        self._squares = np.zeros((len(origin), len(origin)) if len(origin) <= _WHOLE else len(origin))
        self.count = 0

    def add(self, values: Values) -> None:
        """Update the mean and (co)variance with the released `values` of some runs, (run, value)."""
        apart = values - self._origin
        self._sum += apart.sum(0)
        self._squares += apart.T @ apart if self._squares.ndim == 2 else np.square(apart).sum(0)
        self.count += len(apart)

    @property
    def mean(self) -> Values:
        return self._origin + self._sum / self.count

    @property
    def covariance(self) -> Values:
        """Covariances of the released values (value, value), or for many values only the variances (value,)."""
        mean = self._sum / self.count
        return self._squares / self.count - (np.outer(mean, mean) if self._squares.ndim == 2 else mean * mean)


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """Scores that tell two worlds (neighbouring data sets) apart: functions from a run's released values to a number,
    learned from other runs. An audit bounds ε by a threshold on a score."""

    directions: tuple[Values, ...]
    """A direction (value,) for each score that is a projection of the released values on this direction."""
    centre: Values
    """Mean of the released values over both worlds, (value,)."""
    precision: Values
    """Inverse variance of each released value, (value,); 0 for values without noise."""

    def __call__(self, values: Values) -> Values:
        """Return the scores (run, score) of the released `values` (run, value): a projection for each direction, then
        the spread Σ (y - m)²/v over values y with mean m and variance v."""
        apart = values - self.centre
        return np.stack([*(apart @ direction for direction in self.directions), np.square(apart) @ self.precision], -1)

    @property
    def nothing_differs(self) -> bool:
        """True if all runs of both worlds (data sets) released the same values, so that no score exists."""
        return not (self.precision.any() or any(direction.any() for direction in self.directions))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the scores that tell the two worlds (data sets) apart, in the order of the scores."""
        return NAMES[-len(self.directions) - 1 :]


def learned(worlds: Sequence[Moments]) -> Learned:
    """Learn scores (functions of the released values) that tell two worlds (neighbouring data sets) apart. `worlds`
    holds the moments of the released values in each world. The scores are:

    - Difference of means, in units of the variance: the likelihood ratio for independent Gaussian noise.
    - Difference of means with the inverse covariance: the likelihood ratio for dependent Gaussian noise, such as noise
      that is used twice. Only for few values.
    - Spread: a larger or smaller noise may also tell the worlds apart."""
    difference = worlds[1].mean - worlds[0].mean
    covariance = (worlds[0].covariance + worlds[1].covariance) / 2
    variance = np.diag(covariance) if covariance.ndim == 2 else covariance
    size = np.maximum(np.abs(worlds[0].mean), np.abs(worlds[1].mean))
    deviation = np.sqrt(np.maximum(variance, 0.0))
    noisy = deviation > _EXACT * size
    scale = np.where(noisy, deviation, np.maximum(_EXACT * size, np.finfo(float).tiny ** 0.5))
    standard = difference / scale
    directions: list[NDArray[np.float64]] = [standard / scale]
    if covariance.ndim == 2 and min(world.count for world in worlds) >= _PER_VALUE * len(difference):
        correlation = covariance / np.outer(scale, scale)
        correlation[~noisy, :] = correlation[:, ~noisy] = 0.0
        correlation[np.diag_indices_from(correlation)] = 1 + _RIDGE
        directions.insert(0, np.linalg.solve(correlation, standard) / scale)
    precision = np.where(noisy, 1 / scale**2, 0.0)
    return Learned(directions=tuple(directions), centre=(worlds[0].mean + worlds[1].mean) / 2, precision=precision)
