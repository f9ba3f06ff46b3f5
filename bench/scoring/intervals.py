"""Confidence intervals for shares, and comparisons between two shares.

Wilson's interval assumes independent examples.  Examples in the same reading or under the same weight seed are
correlated, and count as fewer trials.  The worst case over m settings uses intervals at level 1 - .05/m.  Two cells
with the same victims are compared in pairs."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, ndtr, ndtri, stdtrit

from bench import rng

Interval = tuple[float, float]
Stratum = tuple[ArrayLike, ArrayLike, ArrayLike]  # successes, groups and clusters, each (n,)
LEVEL = 0.95
_ROOM = 1 << 22  # clusters drawn at once


def simultaneous(m: int, level: float = LEVEL) -> float:
    """Return the confidence level for each of `m` intervals, such as the groups of a verification, so that all
    intervals hold together with probability `level` (Bonferroni)."""
    if m < 1:
        raise ValueError(f"expected at least one interval, got {m}")
    return 1 - (1 - level) / m


def wilson(successes: float, trials: float, level: float = LEVEL) -> Interval:
    """Return Wilson's score interval (low, high) for a share of independent outcomes (Wilson 1927; Brown, Cai, DasGupta
    2001, eq. 4), at confidence `level`. The interval is (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n) with p =
    `successes` / `trials`, n = `trials` and the normal quantile z; without trials (0, 1)."""
    if not 0 <= successes <= trials:
        raise ValueError(f"expected between 0 and {trials} successes, got {successes}")
    if not trials:
        return 0.0, 1.0
    return _wilson(successes / trials, trials, _normal_quantile(level))


def _wilson(share: float, trials: float, z: float) -> Interval:
    correction = z**2 / trials
    centre = share + correction / 2
    half = z * np.sqrt(share * (1 - share) / trials + correction / trials / 4)
    low, high = (centre - half) / (1 + correction), (centre + half) / (1 + correction)
    # At the ends the formula gives 0 and 1 but for rounding.
    return (0.0 if share == 0 else float(low)), (1.0 if share == 1 else float(high))


def cluster_bootstrap(
    values: ArrayLike, clusters: ArrayLike, level: float = LEVEL, *, draws: int = 4000, seed: int = 0
) -> Interval:
    """Return a confidence interval (low, high) for a mean of values that are dependent within clusters, such as
    differences between two attacks on the same weight seed. The bootstrap draws whole clusters.

    - `values` (n,), `clusters` (n,): values, and the cluster's number of each value.
    - `level`: confidence level.
    - `draws`: number of bootstrap samples; `seed`: their seed.

    G clusters are drawn with replacement (Davison, Hinkley 1997, §3.8). Equal clusters give zero width, so shares use
    `clustered_share`. Raises `ValueError` for a single cluster.

    Plain percentiles are too narrow for few clusters. The percentiles used are Φ(-√(G/(G - 1)) t), with the normal
    distribution function Φ and Student's quantile t for G - 1 degrees of freedom (Hesterberg 2015, "expanded percentile
    interval"). In our simulation with normal clusters at `level` .95, the coverage is .87 for 4 clusters (the limit set
    by their range), .94 for 8, and .95 from 16 on."""
    array = np.asarray(values, np.float64)
    names, member = np.unique(np.asarray(clusters), return_inverse=True)
    count = len(names)
    if count < 2:
        raise ValueError(f"expected at least two clusters, got {count}; use wilson")
    sums, sizes = np.bincount(member, array), np.bincount(member)
    generator, means = rng.generator(seed, "bootstrap"), np.empty(draws)
    rows = max(1, _ROOM // count)  # drawn in blocks, the same numbers as at once
    for start in range(0, draws, rows):
        drawn = generator.integers(count, size=(min(rows, draws - start), count))
        means[start : start + rows] = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    tail = float(ndtr(np.sqrt(count / (count - 1)) * stdtrit(count - 1, (1 - level) / 2)))
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def effective_trials(successes: ArrayLike, clusters: ArrayLike) -> float:
    """Return the number of independent trials with the same information as n correlated outcomes, for the width of a
    confidence interval (`clustered_share`). `successes` (n,) in [0, 1] are the outcomes, and `clusters` (n,) the
    numbers of their correlated groups.

    The result is n divided by the design effect (Kish 1965, §5.4): the variance of the mean, divided by the variance
    for independent trials. The result lies between the number of clusters and n; if all outcomes are equal, the result
    is the number of clusters."""
    array = np.asarray(successes, np.float64)
    count, share = len(np.unique(np.asarray(clusters))), float(array.mean())
    spread = share * (1 - share)
    if spread <= 0:
        return float(count)
    variance = variance_of_mean(array, clusters)
    return float(count) if variance <= 0 else min(float(len(array)), max(float(count), spread / variance))


def clustered_share(
    successes: ArrayLike, groups: ArrayLike, clusters: ArrayLike | None = None, level: float = LEVEL
) -> Interval:
    """Return a confidence interval (low, high) for a success rate, if examples of the same reading or weight seed leak
    together, so that outcomes are correlated.

    - `successes` (n,) in [0, 1]: outcomes.
    - `groups` (n,): reading (observed update) of each outcome; `clusters` (n,): its weight seed, None without seeds.
    - `level`: confidence level.

    The result is the smallest interval that contains two intervals of Wilson's form:

    - The number of trials is `effective_trials` of the groups.
    - The number of trials follows from the variance between clusters, and Student's quantile replaces the normal
      quantile (Korn, Graubard 1998, for Clopper and Pearson's interval). If `clusters` is None, the groups take their
      place. The interval is left out if all clusters have equal shares, because the variance is then unknown.

    Coverage in a simulation at `level` .95 (tests/test_intervals.py): at least .92 for batches that leak as a whole,
    and for 4 or 8 seeds whose log odds have the deviation 1; .87 to .91 for 4 seeds with the deviation 1.5."""
    array = np.asarray(successes, np.float64)
    share, trials = float(array.mean()), effective_trials(array, groups)
    interval = _wilson(share, trials, _normal_quantile(level))
    above = groups if clusters is None else clusters
    count, spread = len(np.unique(np.asarray(above))), share * (1 - share)
    if count < 2 or count == len(array) or spread <= 0:
        return interval
    variance = variance_of_mean(array, above)
    fewer = min(trials, spread / variance) if variance > 0 else trials
    student = float(-stdtrit(count - 1, (1 - level) / 2))
    return _union(interval, _wilson(share, fewer, student))


def variance_of_mean(values: NDArray[np.float64], clusters: ArrayLike) -> float:
    """Return the estimated variance of the mean of n values that are dependent within clusters, such as examples of the
    same reading (observed update). `values` and `clusters` (the cluster of each value) are (n,). The estimate uses the
    sums over each of the G clusters, with the factor G/(G - 1) (Cochran 1977, §9A.2)."""
    names, member = np.unique(np.asarray(clusters), return_inverse=True)
    sums, sizes = np.bincount(member, values), np.bincount(member)
    residual = sums - sizes * values.mean()
    return len(names) / max(1, len(names) - 1) * float(residual @ residual) / len(values) ** 2


def paired_difference(
    a: ArrayLike, b: ArrayLike, level: float = LEVEL, *, clusters: ArrayLike | None = None
) -> tuple[float, float, float]:
    """Compare two shares of leaked examples over the same victims: return share(a) - share(b) with its interval,
    (difference, low, high). Two configurations differ if 0 is outside.

    - `a`, `b` (n,): whether each of the same n examples leaked, in the two configurations.
    - `level`: confidence level.
    - `clusters` (n,): cluster of each example; None for independent examples.

    n₁₀ examples leaked only in a, n₀₁ only in b. The interval is (n₁₀ - n₀₁)/N ± z √(n₁₀ + n₀₁ - (n₁₀ - n₀₁)²/N)/N:
    each cell in the 2×2 table gets half an example more, N = n + 2 (Agresti, Min 2005, "Wald+2"). With `clusters`, the
    interval is enlarged to contain the cluster bootstrap's interval for a - b."""
    first, second = _pairs(a, b)
    difference = float(first.mean() - second.mean())
    centre, spread = wald_plus_2(first, second)
    half = _normal_quantile(level) * spread
    interval = max(-1.0, centre - half), min(1.0, centre + half)
    if clusters is not None:
        resampled = cluster_bootstrap(first.astype(float) - second.astype(float), clusters, level)
        interval = _union(interval, resampled)
    return difference, *interval


def stratified_difference(
    a: Sequence[ArrayLike], b: Sequence[ArrayLike], clusters: Sequence[ArrayLike], level: float = LEVEL
) -> tuple[float, float, float]:
    """Compare the success rates of two attacks over several conditions (strata): return the mean over strata of
    share(a) - share(b), and its interval, (difference, low, high). In a stratum, both attacks have the same n_i victims
    (attacked examples); strata have equal weights.

    - `a[i]`, `b[i]` (n_i,): whether each victim of stratum i leaked.
    - `clusters[i]` (n_i,): cluster of each victim; strata may share clusters.
    - `level`: confidence level.

    The interval is the least that contains:

    - the difference itself,
    - "Wald+2" for C strata (`paired_difference`): each stratum gets the C-th part of the added examples, and variances
      add up,
    - the cluster bootstrap's interval, from each cluster's mean over strata.

    A single stratum gives `paired_difference`, if clusters are equal in size."""
    strata = [(*_pairs(x, y), np.asarray(names)) for x, y, names in zip(a, b, clusters, strict=True)]
    if not strata:
        raise ValueError("expected at least one stratum")
    difference = float(np.mean([x.mean() - y.mean() for x, y, _ in strata]))
    tables = [wald_plus_2(x, y, 0.5 / len(strata)) for x, y, _ in strata]
    centre = float(np.mean([middle for middle, _ in tables]))
    half = _normal_quantile(level) * float(np.sqrt(sum(spread**2 for _, spread in tables))) / len(strata)
    interval = max(-1.0, min(difference, centre - half)), min(1.0, max(difference, centre + half))
    names = sorted({name for *_, each in strata for name in each.tolist()})
    if len(names) < 2:
        return difference, *interval
    means = [
        float(np.mean([x[at].mean() - y[at].mean() for x, y, each in strata if (at := each == name).any()]))
        for name in names
    ]
    return difference, *_union(interval, cluster_bootstrap(means, names, level))


def stratified_share(strata: Sequence[Stratum], level: float = LEVEL) -> tuple[float, float, float]:
    """Return an attack's mean success rate over several conditions (strata), and its confidence interval: (share, low,
    high). A stratum is a triple of arrays (n,): successes, groups (readings) and clusters (weight seeds). Strata share
    clusters, and have equal weights. The interval at confidence `level` is the smallest that contains three parts:

    - the share itself,
    - Agresti and Coull's interval (1998) for C strata: each stratum gets the C-th part of the added z² trials, and
      variances add up,
    - the cluster bootstrap's interval, from each cluster's mean over strata.

    Outcomes in a group are correlated: a stratum with n outcomes counts as fewer trials (`effective_trials`). A
    simulation is in tests/test_intervals.py."""
    return _united(((1, strata),), level)


def stratified_change(
    before: Sequence[Stratum], after: Sequence[Stratum], level: float = LEVEL
) -> tuple[float, float, float]:
    """Compare an attack's success rates in two samples of victims (attacked examples), for instance to test if the
    attack is tuned to the first sample: return the rate in `after` minus the rate in `before`, with its interval,
    (change, low, high). A rate is a mean over strata, such as conditions; each stratum is a triple of arrays (n,):
    successes, groups (readings) and clusters (weight seeds). Both samples have the same weight seeds; `before[i]` and
    `after[i]` are the same stratum. `level` is the confidence level."""
    change, low, high = _united(((1, after), (-1, before)), level)
    return change, low, high


def _united(samples: Sequence[tuple[int, Sequence[Stratum]]], level: float) -> tuple[float, float, float]:
    """Return Σ sign × (mean share over strata) for the pairs (sign, strata) in `samples`, with its interval at
    confidence `level`. The interval is computed as in `stratified_share`."""
    value = centre = variance = 0.0
    by_cluster: dict[int, float] = {}
    z = _normal_quantile(level)
    for sign, strata in samples:
        if not strata:
            raise ValueError("expected at least one stratum")
        count, means = len(strata), dict[int, list[float]]()
        for successes, groups, clusters in strata:
            array, names = np.asarray(successes, np.float64), np.asarray(clusters)
            trials, added = effective_trials(array, groups), z**2 / count
            share = (array.mean() * trials + added / 2) / (trials + added)
            value += sign * float(array.mean()) / count
            centre += sign * float(share) / count
            variance += float(share * (1 - share)) / (trials + added) / count**2
            for name in np.unique(names).tolist():
                means.setdefault(name, []).append(float(array[names == name].mean()))
        for name, each in means.items():
            by_cluster[name] = by_cluster.get(name, 0.0) + sign * float(np.mean(each))
    half = z * float(np.sqrt(variance))
    interval = min(value, centre - half), max(value, centre + half)
    if len(by_cluster) > 1:
        interval = _union(interval, cluster_bootstrap([*by_cluster.values()], [*by_cluster], level))
    least = -1.0 if len(samples) > 1 else 0.0
    return value, max(least, interval[0]), min(1.0, interval[1])


def wald_plus_2(a: NDArray[np.bool_], b: NDArray[np.bool_], added: float = 0.5) -> tuple[float, float]:
    """Return centre and standard error of a "Wald+2" interval (Agresti, Min 2005) for the difference share(a) -
    share(b) of leaked examples; the interval is centre ± z · error. `a` and `b` (n,) are booleans: whether each of the
    same n examples leaked. `added` examples are added to each cell in the 2×2 table."""
    only_a, only_b, total = (a & ~b).sum() + added, (b & ~a).sum() + added, len(a) + 4 * added
    spread = np.sqrt(only_a + only_b - (only_a - only_b) ** 2 / total) / total
    return float((only_a - only_b) / total), float(spread)


def mcnemar(a: ArrayLike, b: ArrayLike) -> float:
    """Test if two configurations leak equally on the same n examples: return the two-sided p-value of McNemar's exact
    test (1947). `a` and `b` (n,) are booleans: whether each example leaked in the first and in the second
    configuration. Among the examples that leaked in only one of the two, the number for a is binomial with probability
    1/2."""
    first, second = _pairs(a, b)
    only_a, only_b = int((first & ~second).sum()), int((second & ~first).sum())
    return min(1.0, 2 * float(bdtr(min(only_a, only_b), only_a + only_b, 0.5)))


def _pairs(a: ArrayLike, b: ArrayLike) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    first, second = np.asarray(a), np.asarray(b)
    if first.shape != second.shape or first.ndim != 1 or not len(first):
        raise ValueError(f"expected two series of the same examples, got {first.shape} and {second.shape}")
    if first.dtype != np.bool_ or second.dtype != np.bool_:
        raise ValueError(f"expected successes as booleans, got {first.dtype} and {second.dtype}")
    return first, second


def _union(one: Interval, other: Interval) -> Interval:
    return min(one[0], other[0]), max(one[1], other[1])


def _normal_quantile(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    return float(ndtri((1 + level) / 2))
