"""The smallest worsening that a baseline can see: what a passed gate excludes."""

from collections.abc import Mapping
from functools import cache

import numpy as np
from numpy.typing import NDArray

from bench.gate.noninferiority import LEVEL, of_shares
from bench.gate.reports import change
from bench.gate.verdict import Verdict

_SHARES = ("asr", "identified", "named")
_TRIALS, _POWER = 200, 0.8  # random places of the leaks; share of these trials in which the gate must say weaker


def sees(verdict: Verdict) -> dict[str, float]:
    """Return how small a worsening the regression gate can detect with the readings and examples of this comparison,
    metric → worsening; the largest value over all defenses and interception points. `verdict` holds the comparisons.

    For a figure that worsens equally in all readings (observed updates), such as the SNR, the value is the metric's
    margin. For a share of examples, the value is the smallest increase that the gate would call weaker in at least 80 %
    of trials, if the new leaks fall on random examples. Comparisons in which every example already leaks are left
    out."""
    level = 1 - (1 - LEVEL) / max(1, len(verdict.comparisons))
    least: dict[str, float] = {}
    for row in verdict.comparisons:
        full = row.metric in _SHARES and round(row.before * row.pairs) == row.pairs
        if row.metric != "undefended_asr" and not full:  # weaker attacks prove nothing about a defense
            hits = round(row.before * row.pairs)
            value = _share(hits, row.pairs, row.clusters, row.margin, level) if row.metric in _SHARES else row.margin
            least[row.metric] = max(least.get(row.metric, 0.0), value)
    return least


def sentence(seen: Mapping[str, float]) -> str:
    """Describe the smallest detectable worsenings in a line, such as `≥ 3.0 dB reading_snr, ≥ 12 points asr`. `seen`
    maps each metric to its smallest detectable worsening."""
    return ", ".join(f"≥ {change(name, value)} {name}" for name, value in sorted(seen.items()))


@cache  # many places have equal counts
def _share(hits: int, pairs: int, clusters: int, margin: float, level: float) -> float:
    """Return the smallest increase of a share that is called weaker, from `hits` of `pairs` leaked examples in
    `clusters` weight seeds; 1 if no increase is."""
    generator = np.random.default_rng(0)
    cluster = np.arange(pairs) % clusters
    leaked = np.zeros(pairs, bool)
    leaked[:hits] = True
    free = np.flatnonzero(~leaked)
    for count in range(max(1, int(np.ceil(margin * pairs - 1e-9))), len(free) + 1):
        if _caught(generator.permuted(np.tile(free, (_TRIALS, 1)), axis=1)[:, :count], leaked, cluster, level):
            return count / pairs
    return 1.0


def _caught(fresh: NDArray[np.int64], leaked: NDArray[np.bool_], cluster: NDArray[np.int64], level: float) -> bool:
    return sum(_is_weaker(chosen, leaked, cluster, level) for chosen in fresh) >= _POWER * len(fresh)


def _is_weaker(chosen: NDArray[np.int64], leaked: NDArray[np.bool_], cluster: NDArray[np.int64], level: float) -> bool:
    after = leaked.copy()
    after[chosen] = True
    return of_shares(after, leaked, cluster).lower(level) > 0
