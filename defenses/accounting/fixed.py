"""Accounting for the actual sampling: examples follow their client's draws, in shuffled batches, not Poisson draws.

μ is the sensitivity divided by the noise deviation, for a single Gaussian release."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr

_GRID = 1 << 14  # grid cells for Σ μ²; each round's μ² is rounded up to a cell, which only raises ε
Floats = NDArray[np.float64]


def of_examples(releases: Sequence[float], delta: float, *, rate: float) -> float:
    """Return ε at δ = `delta` for an example in a training over many rounds. The choice of the rounds that use the
    example is random, but known to the attacker.

    - `releases`: for each round, the sum of μ² over the noised results that depend on the example, if the round uses
      the example; μ is the sensitivity divided by the noise deviation.
    - `rate`: probability that a round uses the example, independently of the data.

    Rounds compose to a single Gaussian release, whose squared μ is the sum over rounds (Dong, Roth & Su 2022, corollary
    3.3). δ(ε) is the mean over the random choices of rounds that use the example (joint convexity)."""
    squares = np.asarray(releases, np.float64)
    if not np.isfinite(squares).all():
        return math.inf
    weights, total = _totals(squares, rate)
    keep = (weights > 0) & (total > 0)
    weights, mu = weights[keep], np.sqrt(total[keep])

    def excess(epsilon: float) -> float:
        first = log_ndtr(mu / 2 - epsilon / mu)
        second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
        delta_of = np.exp(first) * -np.expm1(np.minimum(0.0, second - first))
        return float(weights @ delta_of) - delta

    if not len(mu) or excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(brentq(excess, 0.0, high, xtol=1e-10))


def _totals(squares: Floats, rate: float) -> tuple[Floats, Floats]:
    """Return the distribution of Σμ² over the rounds that use the example: weights and values, rounded up to a grid.
    `squares` are the rounds' Σμ², and `rate` is the probability of a use."""
    largest = float(squares.sum())
    if largest == 0:
        return np.ones(1), np.zeros(1)
    equal = bool((squares == squares[0]).all())
    cell = float(squares[0]) if equal else largest / _GRID
    cells = np.ceil(squares / cell - 1e-9).astype(int)
    weights = np.zeros(int(cells.sum()) + 1)
    weights[0], filled = 1.0, 1
    for jump in cells.tolist():
        shifted = rate * weights[:filled]
        weights[:filled] *= 1 - rate
        weights[jump : jump + filled] += shifted
        filled += jump
    return weights, cell * np.arange(len(weights), dtype=np.float64)
