"""Scoring: whether a figure rose between two answers to the same questions, by one-sided bounds.

Pairs that belong together (those of one weight seed) form clusters; what varies between clusters sets the
width, with Student's t for their small number.  Successes are not taken for surer than their count allows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri, stdtr, stdtrit

LEVEL = 0.95  # of a one-sided bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Rise:
    """Mean of after - before over `pairs` pairs in `clusters` clusters, and how sure it is.

    `error` is its standard error over clusters, with `free` degrees of freedom; `centre` and `spread` are
    those of the paired counts for successes, None for other figures.  With fewer than two clusters nothing
    is known of how they vary, and the bounds are infinite.
    """

    estimate: float
    pairs: int
    clusters: int
    error: float
    free: int
    centre: float | None = None
    spread: float | None = None

    def lower(self, level: float = LEVEL) -> float:
        """What the rise is above with this confidence."""
        return -_upper(-self.estimate, None if self.centre is None else -self.centre, self, level)

    def upper(self, level: float = LEVEL) -> float:
        """What the rise is below with this confidence."""
        return _upper(self.estimate, self.centre, self, level)

    @property
    def p(self) -> float:
        """One-sided p-value of no rise: 1 - the level at which `lower` is zero."""
        if self.free < 1:
            return 1.0
        if self.error:
            found = float(stdtr(self.free, -self.estimate / self.error))
        else:
            found = 0.0 if self.estimate > 0 else 1.0
        if self.centre is not None and self.spread is not None:
            found = max(found, float(ndtr(-self.centre / self.spread)))
        return found


def of_numbers(after: ArrayLike, before: ArrayLike, clusters: ArrayLike) -> Rise:
    """The rise of a figure (pair,) whose pairs belong to `clusters` (pair,).

    The mean of all pairs; its variance is that of a ratio of cluster sums, linearised, times G/(G - 1)
    (Cochran 1977, §9A.2), with G - 1 degrees of freedom.  Raises `ValueError` for no pairs, or figures that
    are not finite.
    """
    rises = np.asarray(after, np.float64) - np.asarray(before, np.float64)
    if rises.ndim != 1 or not len(rises) or not np.isfinite(rises).all():
        raise ValueError(f"expected finite figures of the same pairs, got {rises.shape}")
    names, member = np.unique(np.asarray(clusters), return_inverse=True)
    count, estimate = len(names), float(rises.mean())
    sums, sizes = np.bincount(member, rises), np.bincount(member)
    residual = sums - sizes * estimate
    variance = count / max(1, count - 1) * float(residual @ residual) / len(rises) ** 2
    # The mean of equal numbers differs from them by rounding, which is no spread.
    exact = np.ptp(rises) <= 1e-12 * max(1.0, float(np.abs(rises).max()))
    return Rise(
        estimate=float(rises[0]) if exact else estimate, pairs=len(rises), clusters=count,
        error=0.0 if exact else float(np.sqrt(variance)), free=count - 1,
    )  # fmt: skip


def of_shares(after: ArrayLike, before: ArrayLike, clusters: ArrayLike) -> Rise:
    """The rise of a share of successes (pair,) as booleans.

    Bounds are the wider of the clusters' and of the paired counts' with half a pair more in each of the four
    fields (Agresti, Min 2005, "Wald+2"): pairs that all agree have no spread between clusters, but are few.
    """
    first, second = np.asarray(after), np.asarray(before)
    if first.dtype != np.bool_ or second.dtype != np.bool_:
        raise ValueError(f"expected successes as booleans, got {first.dtype} and {second.dtype}")
    found = of_numbers(first, second, clusters)
    up, down = (first & ~second).sum() + 0.5, (second & ~first).sum() + 0.5
    total = len(first) + 2
    spread = float(np.sqrt(up + down - (up - down) ** 2 / total) / total)
    return Rise(
        estimate=found.estimate, pairs=found.pairs, clusters=found.clusters, error=found.error,
        free=found.free, centre=float((up - down) / total), spread=spread,
    )  # fmt: skip


def holm(p_values: Sequence[float], level: float = LEVEL) -> list[tuple[float, float]]:
    """Holm's step-down (1979): for each test its adjusted p-value and the level of its own bound.

    The test with the k-th smallest p of m is adjusted by m - k + 1, and no adjusted p is below an earlier one.
    """
    order = np.argsort(p_values, kind="stable")
    found: list[tuple[float, float]] = [(1.0, level)] * len(p_values)
    so_far = 0.0
    for step, position in enumerate(order):
        left = len(p_values) - step
        so_far = max(so_far, min(1.0, left * p_values[position]))
        found[position] = (so_far, 1 - (1 - level) / left)
    return found


def _upper(estimate: float, centre: float | None, rise: Rise, level: float) -> float:
    if rise.free < 1:
        return float("inf")
    bound = estimate + float(stdtrit(rise.free, level)) * rise.error
    if centre is not None and rise.spread is not None:
        bound = max(bound, min(1.0, centre + float(ndtri(level)) * rise.spread))
    return bound
