"""The share of named examples as a falling curve of a defense's strength, and the strength at which the curve's upper
confidence band meets a level (a largest permitted share).

The curve is the bound of a Gaussian mechanism (Balle, Cherubin & Hayes 2022) in the position t of the strength, from 0
(weak) to 1 (strong). The curve falls from 1 to chance κ:

p(t) = Φ(Φ⁻¹(κ) + exp(-slope · (t - middle))),  slope > 0

Measured strengths enter a level's fit by the distance of their share to the level: the curve holds near a level, and
not over the whole range, because examples differ (equal rows of a table are never told apart, outliers are named behind
strong noise). A verdict per strength (pass or fail) would be less stable: 512 readings near a level have a standard
deviation of 1 to 2 points. Two strengths do not determine the slope, so the logarithm of the slope has a normal prior
around the slope of additive noise."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr, ndtri

from bench.defenses.strength import Strength

_DRAWS = 200  # bootstrap draws of weight seeds
_BAND = 0.95  # one-sided
_MIDDLES, _SLOPES = (-2.0, 3.0), (0.5, 2000.0)  # ranges of the fit
_COARSE = (121, 25)  # grid points of the first search: middles, slopes
_PRIOR = 1.0  # standard deviation of the logarithm of the slope
_REACH = 3  # distance from a level, in standard deviations of Φ⁻¹(share), beyond which a share has no weight
_FINE, _ZOOMS, _ZOOM = 9, 14, 0.6  # grid points of a later search per parameter; searches; ratio of widths

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Numbers of named examples at a strength of a defense, by weight seed. An example is named if the attacker picks
    it among candidates."""

    position: float
    """Position of the strength, 0 (weak) to 1 (strong)."""
    hits: tuple[int, ...]
    """Number of named examples for each weight seed."""
    readings: tuple[int, ...]
    """Number of attacked examples for each weight seed, in the same order."""

    @property
    def share(self) -> float:
        """Share of named examples (picked by the attacker among candidates), over all weight seeds."""
        return sum(self.hits) / sum(self.readings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Fitted curve of the leakage behind a defense: the share p of examples that the attacker names (picks among
    candidates) falls with the strength's position t (0 weak, 1 strong). p(t) = Φ(Φ⁻¹(chance) + exp(-slope · (t -
    middle))), with the normal distribution function Φ."""

    middle: float
    """Position t of the curve's middle, at which exp(-slope · (t - middle)) is 1."""
    slope: float
    """Steepness of the curve, above 0."""
    chance: float
    """κ, the share of examples that a blind guess names, in (0, 1)."""

    def share(self, position: float | Array) -> Array:
        """Return the curve's share of named examples at the strength's `position` (0 weak, 1 strong), as an array in
        the shape of `position`."""
        return np.asarray(ndtr(ndtri(self.chance) + _shift(np.asarray(position), self.middle, self.slope)))

    def position(self, share: float) -> float:
        """Return the position of the strength (0 weak, 1 strong) at which this `share` of examples is named. The
        position is -inf for a share of 1 and above, which no strength reaches, and inf for the share of a blind guess
        and below."""
        if share <= self.chance or share >= 1:
            return math.inf if share <= self.chance else -math.inf
        return self.middle - math.log(float(ndtri(share) - ndtri(self.chance))) / self.slope


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelStrength:
    """The weakest strength of a defense that meets a level: an upper bound on the share of named examples, which the
    attacker picks among candidates."""

    level: float
    """The level: largest permitted share of named examples, in (0, 1)."""
    position: float | None
    """Position of the strength (0 weak, 1 strong) at which the curve's one-sided 95 % upper band meets the level. None
    if no position up to 1 meets the level, or if the measured share is above the level at all measured strengths."""
    fitted: float
    """Position where the fitted curve meets the level, possibly outside [0, 1]."""
    interval: tuple[float, float]
    """5 % and 95 % quantile of the position `fitted`, over resampled weight seeds."""


def usual_slope(strength: Strength) -> float:
    """Return a typical slope of the curve (share of named examples over the strength's position) for a defense with
    additive noise: the centre of the prior when a curve is fitted to few measurements. `strength` is the defense's
    strength parameter: the wider its range from weak to strong, the larger the slope. The value lies between the slopes
    for a parameter that is the noise's standard deviation, and for a parameter that is its variance (half the
    slope)."""
    return abs(math.log(strength.scaled(strength.strong) / strength.scaled(strength.weak))) / math.sqrt(2)


def fitted(counts: Sequence[Counts], level: float, chance: float, usual: float) -> Curve:
    """Return the curve (share of named examples over a defense's strength) that fits the measured `counts` best near a
    `level`: with the largest weighted binomial likelihood times prior for the slope.

    - `counts`: numbers of named examples (picked by the attacker among candidates) at the measured strengths.
    - `level`: share of named examples near which the curve holds.
    - `chance`: share of examples that a blind guess names.
    - `usual`: centre of the slope's prior, from `usual_slope`."""
    hits, readings = _weighted(counts, level)
    return _fit(_positions(counts), hits.sum(0)[None], readings.sum(0)[None], chance, usual)[0]


def calibrated(
    counts: Sequence[Counts], chance: float, levels: Sequence[float], usual: float, seed: int = 0
) -> tuple[LevelStrength, ...]:
    """Return for each of `levels` (largest permitted shares of named examples) the weakest strength, as a position in
    [0, 1], at which the curve's upper confidence band is at most the level. An example is named if the attacker picks
    it among candidates.

    - `counts`: numbers of named examples at the measured strengths.
    - `chance`: share of examples that a blind guess names.
    - `usual`: centre of the prior for the curve's slope, from `usual_slope`.
    - `seed`: seed for the resampling of weight seeds.

    The band is the 95 % quantile, position by position, of curves fitted to resampled weight seeds (the clusters).
    Raises `ValueError` if strengths have different weight seeds, or if a level is not between chance and 1."""
    for level in levels:
        if not chance < level < 1:
            raise ValueError(f"a level must lie between chance ({chance:.3g}) and 1, got {level:.3g}")
    if len({each.readings for each in counts}) != 1:
        raise ValueError("each strength needs the same weight seeds and readings")
    least = min(each.share for each in counts)
    found = []
    for level in levels:
        best, curves = fitted(counts, level, chance, usual), _resampled(counts, level, chance, usual, seed)
        low, high = np.quantile([curve.position(level) for curve in curves], (1 - _BAND, _BAND), method="nearest")
        # The share falls with the position, so the 95 % quantile of curves meets the level where that of positions is.
        position = None if high > 1 or least > level else max(0.0, float(high))
        found.append(
            LevelStrength(
                level=level, position=position, fitted=best.position(level), interval=(float(low), float(high))
            )
        )
    return tuple(found)


def _resampled(counts: Sequence[Counts], level: float, chance: float, usual: float, seed: int) -> list[Curve]:
    hits, readings = _weighted(counts, level)
    chosen = np.random.default_rng(seed).integers(len(hits), size=(_DRAWS, len(hits)))
    return _fit(_positions(counts), hits[chosen].sum(1), readings[chosen].sum(1), chance, usual)


def _positions(counts: Sequence[Counts]) -> Array:
    return np.array([each.position for each in counts])


def _weighted(counts: Sequence[Counts], level: float) -> tuple[Array, Array]:
    """Return hits and readings, (weight seed, strength), times each strength's weight for the `level`."""
    hits, readings = (
        np.array(each, np.float64).T for each in zip(*((t.hits, t.readings) for t in counts), strict=True)
    )
    weights = _weights(hits.sum(0), readings.sum(0), level)
    return hits * weights, readings * weights


def _weights(hits: Array, readings: Array, level: float) -> Array:
    """Return the weight of each strength in a fit near the `level`, 0 to 1: 1 at the level and for the nearest shares
    above and below, 0 beyond `_REACH`."""
    distances = ndtri((hits + 0.5) / (readings + 1)) - ndtri(level)
    weights: Array = (1 - np.minimum(np.abs(distances) / _REACH, 1) ** 3) ** 3
    for side in (distances > 0, distances <= 0):
        if side.any():
            nearest = np.abs(distances[side]).min()
            weights[side & (np.abs(distances) <= nearest)] = 1.0
    return weights


def _fit(positions: Array, hits: Array, readings: Array, chance: float, usual: float) -> list[Curve]:
    """Return the likeliest curve for each draw; counts are (draw, strength).  A grid, then finer grids around the best
    point: the likelihood may have a flat top, where gradients fail."""
    middles = np.linspace(*_MIDDLES, _COARSE[0])
    slopes = np.linspace(math.log(_SLOPES[0]), math.log(_SLOPES[1]), _COARSE[1])
    grid = np.stack(np.meshgrid(middles, slopes, indexing="ij"), -1).reshape(1, -1, 2)
    best = _best(grid, positions, hits, readings, chance, usual)
    width = np.array([middles[1] - middles[0], slopes[1] - slopes[0]])
    steps = np.linspace(-1, 1, _FINE)
    around = np.stack(np.meshgrid(steps, steps, indexing="ij"), -1).reshape(1, -1, 2)
    for _ in range(_ZOOMS):
        grid = best[:, None] + around * width
        best = _best(grid, positions, hits, readings, chance, usual)
        width = _ZOOM * width
    return [Curve(middle=float(middle), slope=math.exp(slope), chance=chance) for middle, slope in best]


def _best(grid: Array, positions: Array, hits: Array, readings: Array, chance: float, usual: float) -> Array:
    """Return for each draw the likeliest grid point, (draw, 2); `grid` is (draw or 1, point, 2)."""
    quantile = ndtri(chance) + _shift(positions, grid[..., :1], np.exp(grid[..., 1:]))
    named, other = log_ndtr(quantile), log_ndtr(-quantile)  # (draw or 1, point, strength)
    total = (named * hits[:, None] + other * (readings - hits)[:, None]).sum(-1)
    total = total - ((grid[..., 1] - math.log(usual)) / _PRIOR) ** 2 / 2
    rows = np.arange(len(hits))
    best: Array = np.broadcast_to(grid, (len(hits), *grid.shape[1:]))[rows, total.argmax(1)]
    return best


def _shift(positions: Array, middle: float | Array, slope: float | Array) -> Array:
    """Return exp(-slope · (t - middle)) for `positions` t, limited to [0, 38]: Φ is 1 in double precision beyond."""
    limited: Array = np.minimum(np.exp(np.clip(-slope * (positions - middle), -700, 4)), 38.0)
    return limited
