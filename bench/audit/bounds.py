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
    """A lower bound of a privacy parameter (ε or μ), measured by an audit, with the event that proves it. The event is
    a score of the released values above or below a threshold; it is likelier in one of two worlds (neighbouring data
    sets)."""

    value: float
    """The lower bound, at least 0."""
    score: int
    """Index of the event's score among the audit's scores (functions of the released values)."""
    threshold: float
    """Threshold with which the event compares the score."""
    above: bool
    """True: the event is a score above the threshold; False: a score at or below the threshold."""
    likelier: int
    """World (0 or 1) in which the event is likelier."""
    least: float
    """Lower confidence bound of the event's probability in the likelier world."""
    most: float
    """Upper confidence bound of the event's probability in the other world."""


def pure(least: Values, most: Values, delta: float) -> Values:
    """Return a lower bound of ε at δ = `delta` from the probabilities of an event on two neighbouring data sets: ln((p
    - δ)/q), an array in the shape of the arguments. The event has at least the probability p = `least` on a data set,
    and at most q = `most` on the other. The bound holds for every mechanism; it is -∞ for p ≤ δ."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(least > delta, np.log((least - delta) / most), -math.inf)


def gaussian(least: Values, most: Values) -> Values:
    """Return a lower bound of μ for a Gaussian mechanism from the probabilities of an event on two neighbouring data
    sets: Φ⁻¹(p) - Φ⁻¹(q), an array in the shape of the arguments. The event has at least the probability p = `least` on
    a data set, and at most q = `most` on the other. μ is the sensitivity divided by the noise's standard deviation, and
    Φ the normal distribution function."""
    apart: Values = ndtri(least) - ndtri(most)
    return np.nan_to_num(apart, nan=-math.inf, posinf=math.inf, neginf=-math.inf)


def epsilon_of(mu: float, delta: float) -> float:
    """Return the exact ε of a Gaussian mechanism at δ = `delta`. `mu` is its sensitivity divided by the noise's
    standard deviation, at least 0."""
    return composition.gaussian(1 / mu, delta) if mu > 0 else 0.0


def epsilon_bound(select: Sequence[Scores], test: Sequence[Scores], *, delta: float, confidence: float) -> Bound:
    """Return a lower bound of ε at δ = `delta`, measured in runs of a pipeline on two neighbouring data sets (worlds).
    The bound holds with probability `confidence`, without an assumption on the noise. It follows from an event that is
    likelier in one world: a score (a number computed from the released values) is above or below a threshold.

    - `select`: for each score its values in the two worlds, (run,) each, from the runs that choose the event.
    - `test`: the same from other runs, which bound the event's probability in both worlds."""
    return _bound(select, test, confidence, lambda least, most: pure(least, most, delta))


def mu_bound(select: Sequence[Scores], test: Sequence[Scores], *, confidence: float) -> Bound:
    """Return a lower bound of μ (sensitivity divided by the noise's standard deviation) for a Gaussian mechanism,
    measured in runs of a pipeline on two neighbouring data sets (worlds). The bound holds with probability
    `confidence`, and refutes every claim of a Gaussian mechanism with a smaller μ.

    - `select`: for each score (a number computed from the released values) its values in the two worlds, (run,) each,
      from the runs that choose the event: a score above or below a threshold.
    - `test`: the same from other runs, which bound the event's probability in both worlds."""
    return _bound(select, test, confidence, gaussian)


def largest(runs: int, *, delta: float, confidence: float) -> float:
    """Return the largest lower bound of ε at δ = `delta` that an audit with confidence `confidence` can measure with
    `runs` test runs in each of two worlds (neighbouring data sets). An event that always occurs in a world and never in
    the other reaches this bound."""
    low, high = limits(runs, confidence)
    return float(pure(low[-1:], high[:1], delta)[0])


@lru_cache(maxsize=16)
def limits(runs: int, confidence: float) -> tuple[Values, Values]:
    """Return lower and upper confidence bounds of an event's probability, by Clopper and Pearson: two arrays
    (`runs` + 1,). Index k holds the bound after k occurrences in `runs` runs. A lower bound for a world (data set) and
    an upper bound for the other world hold together with probability `confidence`."""
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
