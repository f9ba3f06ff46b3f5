"""Whether a figure rose between two runs of the same configurations: non-inferiority by one-sided bounds.

Pairs that belong together (those of one weight seed) form clusters; what varies between clusters sets the
width, with Student's t for their small number.  A share is not taken to be surer than its count allows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from bench.scoring.intervals import wald_plus_2

LEVEL = 0.95  # of a one-sided bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Increase:
    """Mean of after - before over `pairs` pairs in `clusters` clusters, and how sure it is.

    `error` is its standard error over clusters, with `freedom` degrees of freedom; `centre` and `spread` are
    those of the paired counts for successes, None for other figures.  With fewer than two clusters nothing
    is known of how they vary, and the bounds are infinite.
    """

    estimate: float
    pairs: int
    clusters: int
    error: float
    freedom: int
    centre: float | None = None
    spread: float | None = None

    def lower(self, level: float = LEVEL) -> float:
        """What the increase is above with this confidence."""
        return -_upper(-self.estimate, None if self.centre is None else -self.centre, self, level)

    def upper(self, level: float = LEVEL) -> float:
        """What the increase is below with this confidence."""
        return _upper(self.estimate, self.centre, self, level)

    @property
    def p(self) -> float:
        """One-sided p-value of no increase: 1 - the level at which `lower` is zero."""
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
    """The increase of a figure (pair,) whose pairs belong to `clusters` (pair,).

    The mean of all pairs; its variance is that of a ratio of cluster sums, linearised, times G/(G - 1) (Cochran 1977,
    §9A.2), with G - 1 degrees of freedom.  Raises `ValueError` for no pairs, or figures that are not finite.
    """
    increases = np.asarray(after, np.float64) - np.asarray(before, np.float64)
    if increases.ndim != 1 or not len(increases) or not np.isfinite(increases).all():
        raise ValueError(f"expected finite figures of the same pairs, got {increases.shape}")
    names, member = np.unique(np.asarray(clusters), return_inverse=True)
    count, estimate = len(names), float(increases.mean())
    sums, sizes = np.bincount(member, increases), np.bincount(member)
    residual = sums - sizes * estimate
    variance = count / max(1, count - 1) * float(residual @ residual) / len(increases) ** 2
    # The mean of equal numbers differs from them by rounding, which is no spread.
    exact = np.ptp(increases) <= 1e-12 * max(1.0, float(np.abs(increases).max()))
    return Increase(
        estimate=float(increases[0]) if exact else estimate,
        pairs=len(increases),
        clusters=count,
        error=0.0 if exact else float(np.sqrt(variance)),
        freedom=count - 1,
    )


def of_shares(after: ArrayLike, before: ArrayLike, clusters: ArrayLike) -> Increase:
    """The increase of a share of successes (pair,) as booleans.

    Bounds are the wider of the clusters' and of the paired counts' with half a pair more in each of the four
    fields (Agresti, Min 2005, "Wald+2"): pairs that all agree have no spread between clusters, but are few.
    """
    now, then = np.asarray(after), np.asarray(before)
    if now.dtype != np.bool_ or then.dtype != np.bool_:
        raise ValueError(f"expected successes as booleans, got {now.dtype} and {then.dtype}")
    centre, spread = wald_plus_2(now, then)
    return replace(of_numbers(now, then, clusters), centre=centre, spread=spread)


def holm(p_values: Sequence[float], level: float = LEVEL) -> list[tuple[float, float]]:
    """Holm's step-down (1979): for each test its adjusted p-value and the level of its own bound.

    The test with the k-th smallest p of m is adjusted by m - k + 1, and no adjusted p is below an earlier one.  It is
    rejected where its adjusted p is at most 1 - level, which is where its bound excludes no increase: once a test is
    not rejected, those after it keep its level (to go on with theirs would be Hochberg's step-up, 1988, which needs
    tests that do not depend on one another badly).
    """
    order = np.argsort(p_values, kind="stable")
    adjusted: list[tuple[float, float]] = [(1.0, level)] * len(p_values)
    largest, stopped = 0.0, 0  # tests that remained at the first that was not rejected
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
