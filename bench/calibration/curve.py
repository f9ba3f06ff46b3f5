"""The share of named examples as a falling curve of a defense's strength, and the strength at which the curve's upper
band meets a level.

The curve is logistic in the position t of the strength (0: weak, 1: strong), from 1 down to chance κ:

    p(t) = κ + (1 - κ) / (1 + exp(slope · (t - middle))),  slope > 0

All strengths tried so far enter the fit. A verdict per strength (pass or fail) would wander: 512 readings near a level
have a standard deviation of 1 to 2 points.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

_DRAWS = 200  # bootstrap draws of weight seeds
_BAND = 0.95  # one-sided
_SLOPES = (4.0, 16.0, 64.0)  # starts of the fit
_STEEPEST = 2000.0  # a slope above: the share falls within a thousandth of the range
_LEAST = 1e-9

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """The readings named at one strength."""

    position: float
    """Position of the strength, 0 (weak) to 1 (strong)."""
    hits: tuple[int, ...]
    """Number of named examples per weight seed."""
    readings: tuple[int, ...]
    """Number of readings per weight seed."""

    @property
    def share(self) -> float:
        """Share of named examples, over all weight seeds."""
        return sum(self.hits) / sum(self.readings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A falling logistic curve from 1 to chance."""

    middle: float
    """Position at which the share is halfway between 1 and chance."""
    slope: float
    """Steepness, above 0."""
    chance: float
    """κ, the share of examples that a blind guess names."""

    def share(self, position: float | Array) -> Array:
        """Return the share of named examples at positions of any shape."""
        exponent = np.clip(self.slope * (np.asarray(position) - self.middle), -700, 700)
        return self.chance + (1 - self.chance) / (1 + np.exp(exponent))

    def position(self, share: float) -> float:
        """Return the position with this share; -inf for a share of 1 and above, inf for chance and below."""
        rest = (share - self.chance) / (1 - self.chance)
        if rest <= 0 or rest >= 1:
            return math.inf if rest <= 0 else -math.inf
        return self.middle + math.log(1 / rest - 1) / self.slope


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """The weakest strength that meets a level."""

    level: float
    """Largest permitted share of named examples."""
    position: float | None
    """Position where the curve's one-sided 95 % upper band meets the level; None: no position in the range does."""
    fitted: float
    """Position where the fitted curve meets the level, possibly outside [0, 1]."""
    interval: tuple[float, float]
    """5 % and 95 % quantile of `fitted` over resampled weight seeds."""


def fitted(tried: Sequence[Tried], chance: float) -> Curve:
    """Return the curve of greatest likelihood, with binomial counts at each strength."""
    positions = np.array([each.position for each in tried])
    hits = np.array([sum(each.hits) for each in tried], np.float64)
    readings = np.array([sum(each.readings) for each in tried], np.float64)
    return _fit(positions, hits, readings, chance)


def _fit(positions: Array, hits: Array, readings: Array, chance: float, start: Curve | None = None) -> Curve:
    def loss(parameters: Array) -> float:
        curve = Curve(middle=float(parameters[0]), slope=math.exp(parameters[1]), chance=chance)
        share = np.clip(curve.share(positions), _LEAST, 1 - _LEAST)
        return float(-(hits * np.log(share) + (readings - hits) * np.log(1 - share)).sum())

    if start is not None:
        starts = [(start.middle, math.log(start.slope))]
    else:
        starts = [(middle, math.log(slope)) for middle in _middles(positions, hits / readings) for slope in _SLOPES]
    bounds = [(-2.0, 3.0), (math.log(0.5), math.log(_STEEPEST))]
    found = min(
        (
            minimize(loss, each, method="Nelder-Mead", bounds=bounds, options={"xatol": 1e-4, "fatol": 1e-4})
            for each in starts
        ),
        key=lambda result: float(result.fun),
    )
    return Curve(middle=float(found.x[0]), slope=math.exp(found.x[1]), chance=chance)


def _middles(positions: Array, shares: Array) -> tuple[float, ...]:
    """Return starts for the middle: between the last position with a share above one half, and the next."""
    order = np.argsort(positions)
    above = [at for at in order if shares[at] > 0.5]
    below = [at for at in order if shares[at] <= 0.5]
    if not above or not below:
        return (1.2,) if above else (-0.2,)
    return (float(positions[above[-1]] + positions[below[0]]) / 2, 0.5)


def calibrated(tried: Sequence[Tried], chance: float, level: float, seed: int = 0) -> Calibrated:
    """Return the weakest position in [0, 1] whose upper band is at most `level`.

    The band is the 95 % quantile, position by position, of curves fitted to resampled weight seeds (the clusters).  Its
    random numbers depend on `seed` only.  Raises `ValueError` if strengths have different weight seeds, or `level` is
    not above chance.
    """
    if not chance < level < 1:
        raise ValueError(f"a level must lie between chance ({chance:.3g}) and 1, got {level:.3g}")
    if len({len(each.hits) for each in tried}) != 1:
        raise ValueError("each strength needs the same weight seeds")
    best = fitted(tried, chance)
    curves = _resampled(tried, best, seed)
    at_level = np.array([curve.position(level) for curve in curves])
    low, high = (float(each) for each in np.quantile(at_level, (1 - _BAND, _BAND), method="nearest"))
    # The share falls with the position, so the band meets the level where the 95 % quantile of curves does.
    position = None if high > 1 else max(0.0, high)
    return Calibrated(level=level, position=position, fitted=best.position(level), interval=(low, high))


def _resampled(tried: Sequence[Tried], best: Curve, seed: int) -> list[Curve]:
    random = np.random.default_rng(seed)
    positions = np.array([each.position for each in tried])
    hits = np.array([each.hits for each in tried], np.float64)
    readings = np.array([each.readings for each in tried], np.float64)
    seeds = hits.shape[1]
    curves = []
    for _ in range(_DRAWS):
        chosen = random.integers(seeds, size=seeds)
        # a draw from the fitted curve's noise inside each seed, because few hits per seed make the resampled counts
        # coarse
        curves.append(_fit(positions, hits[:, chosen].sum(1), readings[:, chosen].sum(1), best.chance, best))
    return curves
