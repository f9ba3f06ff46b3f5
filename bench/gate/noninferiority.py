"""Test whether a figure has become worse between two runs with the same configurations, by one-sided bounds.

A pair is the same item (such as an example) in both runs. Pairs with the same weights' seed form a cluster. A bound's
width follows from the variation between clusters (Student's t) and, for a share, also from the number of pairs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from bench.scoring.intervals import variance_of_mean, wald_plus_2

LEVEL = 0.95  # confidence level for a one-sided bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Increase:
    """Estimate of how much a figure increased between two runs on the same items (after - before), as a mean with its
    uncertainty. The gate decides by its bounds. With fewer than two clusters, the variation is unknown, and the bounds
    are infinite."""

    estimate: float
    """Mean of after - before."""
    pairs: int
    """Number of pairs: items, such as examples, in both runs."""
    clusters: int
    """Number of clusters of dependent pairs, such as pairs with the same weight seed."""
    error: float
    """Standard error of `estimate`, from the variation between clusters."""
    freedom: int
    """Degrees of freedom: number of clusters minus 1."""
    centre: float | None = None
    """Centre of the interval from the 2 × 2 table of paired successes (see `of_shares`); None for other figures."""
    spread: float | None = None
    """Standard error in the interval from the 2 × 2 table of paired successes; None for other figures."""

    def lower(self, level: float = LEVEL) -> float:
        """Return the one-sided lower bound of the increase at the confidence `level`."""
        return -_upper(-self.estimate, None if self.centre is None else -self.centre, self, level)

    def upper(self, level: float = LEVEL) -> float:
        """Return the one-sided upper bound of the increase at the confidence `level`."""
        return _upper(self.estimate, self.centre, self, level)

    @property
    def p(self) -> float:
        """One-sided p-value for the hypothesis that the figure did not increase: 1 minus the confidence level at which
        `lower` is 0."""
        if self.freedom < 1:
            return 1.0
        if self.error:
            p = float(stdtr(self.freedom, -self.estimate / self.error))
        else:
            p = 0.0 if self.estimate > 0 else 1.0
        if self.centre is not None and self.spread is not None:
            p = max(p, float(ndtr(-self.centre / self.spread)))
        return p


def of_numbers(after: ArrayLike, before: ArrayLike, clusters: ArrayLike) -> Increase:
    """Estimate the mean increase of a figure, such as a PSNR, from `before` to `after`, both (pair,). `clusters`
    (pair,) gives the cluster of each pair, such as its weight seed: pairs in a cluster are dependent.

    The variance comes from the sums in each cluster, times G/(G - 1) for G clusters (linearised for a ratio, Cochran
    1977, §9A.2), with G - 1 degrees of freedom. Raises `ValueError` without pairs, or for non-finite figures."""
    increases = np.asarray(after, np.float64) - np.asarray(before, np.float64)
    if increases.ndim != 1 or not len(increases) or not np.isfinite(increases).all():
        raise ValueError(f"expected finite figures of the same pairs, got {increases.shape}")
    count, estimate = len(np.unique(np.asarray(clusters))), float(increases.mean())
    # The mean over equal numbers differs from them by rounding, which is no variation.
    exact = np.ptp(increases) <= 1e-12 * max(1.0, float(np.abs(increases).max()))
    return Increase(
        estimate=float(increases[0]) if exact else estimate,
        pairs=len(increases),
        clusters=count,
        error=0.0 if exact else float(np.sqrt(variance_of_mean(increases, clusters))),
        freedom=count - 1,
    )


def of_shares(after: ArrayLike, before: ArrayLike, clusters: ArrayLike) -> Increase:
    """Estimate the increase in the share of successes, such as leaked examples, from `before` to `after`, booleans
    (pair,). `clusters` (pair,) gives the cluster of each pair, such as its weight seed.

    Each bound is the wider of two: the bound from the variation between clusters, and a bound from the 2 × 2 table of
    paired successes. The table is needed because a few pairs with equal outcomes show no variation between clusters.
    Half a pair is added to each field of the table (Agresti & Min 2005, "Wald+2")."""
    now, then = np.asarray(after), np.asarray(before)
    if now.dtype != np.bool_ or then.dtype != np.bool_:
        raise ValueError(f"expected successes as booleans, got {now.dtype} and {then.dtype}")
    centre, spread = wald_plus_2(now, then)
    return replace(of_numbers(now, then, clusters), centre=centre, spread=spread)


def holm(p_values: Sequence[float], level: float = LEVEL) -> list[tuple[float, float]]:
    """Correct the p-values of several comparisons for their number, by Holm's step-down method (1979). Return for each
    p-value the adjusted p-value, and the confidence level for its one-sided bound. A comparison shows an increase if
    its adjusted p-value is at most 1 - `level`; exactly then, the lower bound at the returned level is above zero.

    The k-th smallest of the m `p_values` is multiplied by m - k + 1; adjusted p-values never decrease. After the first
    test without rejection, all tests use its confidence level (smaller factors would be Hochberg's step-up, 1988,
    invalid under strong dependence)."""
    order = np.argsort(p_values, kind="stable")
    adjusted: list[tuple[float, float]] = [(1.0, level)] * len(p_values)
    largest, stopped = 0.0, 0  # stopped: remaining tests at the first accepted test
    for step, position in enumerate(order):
        remaining = len(p_values) - step
        largest = max(largest, min(1.0, remaining * p_values[position]))
        stopped = stopped or (remaining if largest > 1 - level else 0)
        adjusted[position] = (largest, 1 - (1 - level) / (stopped or remaining))
    return adjusted


def _upper(estimate: float, centre: float | None, increase: Increase, level: float) -> float:
    if increase.freedom < 1:
        return float("inf")
    bound = estimate + float(stdtrit(increase.freedom, level)) * increase.error
    if centre is not None and increase.spread is not None:
        bound = max(bound, min(1.0, centre + float(ndtri(level)) * increase.spread))
    return bound
