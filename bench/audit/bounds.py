"""Lower bounds of ε from scores in two worlds (neighbouring data sets): some runs choose an event, other runs bound its
two probabilities."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtri

from bench.defenses.accounting import composition

Values = NDArray[np.float64]
Scores = tuple[Values, Values]  # of world 0 and of world 1, each (run,)
_THRESHOLDS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A lower bound of a privacy parameter (ε or μ), with the event that proves it: a score of the released values
    above or below a threshold, which is likelier in one of two worlds (neighbouring data sets)."""

    value: float
    """The lower bound, at least 0."""
    score: int
    """Index of the score behind the event."""
    threshold: float
    """Threshold of the score."""
    above: bool
    """True: the event is a score above the threshold; False: a score at or below the threshold."""
    likelier: int
    """World (0 or 1) in which the event is likelier."""
    least: float
    """Lower confidence bound of the event's probability in the likelier world."""
    most: float
    """Upper confidence bound of the event's probability in the other world."""


def pure(least: Values, most: Values, delta: float) -> Values:
    """Return a lower bound of ε, ln((p - δ)/q), that every (ε, δ) guarantee must respect. An event has at least the
    probability p = `least` in a world (data set), and at most q = `most` in the neighbouring world. `delta` is δ; the
    bound is -∞ for p ≤ δ."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(least > delta, np.log((least - delta) / most), -math.inf)


def gaussian(least: Values, most: Values) -> Values:
    """Return a lower bound of μ (sensitivity over noise deviation), Φ⁻¹(p) - Φ⁻¹(q), for a Gaussian mechanism. An event
    has at least the probability p = `least` in a world (data set), and at most q = `most` in the neighbouring world. Φ
    is the normal distribution function."""
    apart: Values = ndtri(least) - ndtri(most)
    return np.nan_to_num(apart, nan=-math.inf, posinf=math.inf, neginf=-math.inf)


def epsilon_of(mu: float, delta: float) -> float:
    """Return the exact ε of a Gaussian mechanism at δ = `delta`. `mu` is its sensitivity divided by the noise
    deviation, at least 0."""
    return composition.gaussian(1 / mu, delta) if mu > 0 else 0.0


def epsilon_bound(select: Sequence[Scores], test: Sequence[Scores], *, delta: float, confidence: float) -> Bound:
    """Return a lower bound of ε at δ = `delta`, measured in runs of a pipeline. The bound holds with probability
    `confidence`, without an assumption on the noise. It comes from the probabilities of an event, a score of the
    released values above or below a threshold, in two worlds (data sets).

    - `select`: for each score, its values (run,) in the two worlds, in the runs that choose the event.
    - `test`: the same scores in the runs that bound the event's probabilities."""
    return _bound(select, test, confidence, lambda least, most: pure(least, most, delta))


def mu_bound(select: Sequence[Scores], test: Sequence[Scores], *, confidence: float) -> Bound:
    """Return a lower bound of μ (sensitivity over noise deviation) for a Gaussian mechanism, measured in runs of a
    pipeline. The bound holds with probability `confidence`, and refutes every claim of a Gaussian mechanism with a
    smaller μ. `select` and `test` are as in `epsilon_bound`."""
    return _bound(select, test, confidence, gaussian)


def largest(runs: int, *, delta: float, confidence: float) -> float:
    """Return the largest ε at δ = `delta` that an audit can prove with `runs` test runs in each world (data set), at
    this `confidence`. This ε is reached by an event that always occurs in a world, and never in the other."""
    low, high = limits(runs, confidence)
    return float(pure(low[-1:], high[:1], delta)[0])


@lru_cache(maxsize=16)
def limits(runs: int, confidence: float) -> tuple[Values, Values]:
    """Return lower and upper confidence bounds of an event's probability, by Clopper and Pearson, each (count,). Index
    k is the bound after k occurrences in `runs` runs, k = 0 … `runs`. Two bounds, of two counts, hold together with
    probability `confidence`."""
    counts, tail = np.arange(runs + 1.0), (1 - confidence) / 2
    low, high = np.zeros(runs + 1), np.ones(runs + 1)
    low[1:] = betaincinv(counts[1:], runs - counts[1:] + 1, tail)
    high[:-1] = betaincinv(counts[:-1] + 1, runs - counts[:-1], 1 - tail)
    return low, high


def _bound(
    select: Sequence[Scores], test: Sequence[Scores], confidence: float, of: Callable[[Values, Values], Values]
) -> Bound:
    runs = len(test[0][0])
    low, high = limits(runs, confidence)
    score, threshold, above, likelier = _chosen(select, low, high, of)
    counts = [int((values > threshold).sum()) for values in test[score]]
    if not above:
        counts = [runs - count for count in counts]
    least, most = low[counts[likelier]], high[counts[1 - likelier]]
    value = float(of(np.array([least]), np.array([most]))[0])
    return Bound(
        value=max(0.0, value),
        score=score,
        threshold=threshold,
        above=above,
        likelier=likelier,
        least=float(least),
        most=float(most),
    )


def _chosen(
    select: Sequence[Scores], low: Values, high: Values, of: Callable[[Values, Values], Values]
) -> tuple[int, float, bool, int]:
    """Return the event (score, threshold, above, likelier world) whose expected bound in the test is largest. `low` and
    `high` are the test's limits by count."""
    runs = len(low) - 1
    counts = np.arange(runs + 1.0)
    best, chosen = -math.inf, (0, 0.0, True, 1)
    for score, worlds in enumerate(select):
        thresholds = _thresholds(np.concatenate(worlds))
        # a share of (k + ½)/(n + 1) is expected after k of n: an event that never occurred may still occur
        shares = [
            (len(values) - np.searchsorted(np.sort(values), thresholds, "right") + 0.5) / (len(values) + 1)
            for values in worlds
        ]
        for above in (True, False):
            expected = [runs * (share if above else 1 - share) for share in shares]
            for likelier in (1, 0):
                least = np.interp(expected[likelier], counts, low)
                most = np.interp(expected[1 - likelier], counts, high)
                values = of(least, most)
                at = int(np.argmax(values))
                if values[at] > best:
                    best, chosen = float(values[at]), (score, float(thresholds[at]), above, likelier)
    return chosen


def _thresholds(scores: Values) -> Values:
    """Return limits between neighbouring scores, at most `_THRESHOLDS` of them, with both ends of the range."""
    distinct = np.unique(scores)
    if len(distinct) > _THRESHOLDS:
        distinct = distinct[np.linspace(0, len(distinct) - 1, _THRESHOLDS).round().astype(int)]
    if len(distinct) == 1:
        return distinct
    return (distinct[1:] + distinct[:-1]) / 2
