"""The next strengths to try, from the strengths tried so far."""

import math
from collections.abc import Mapping, Sequence

from bench.calibration.curve import Calibrated, Tried, calibrated, usual_slope
from bench.defenses.strength import Strength

FIRST = (0.25, 0.5, 0.75)
MOST = 8  # strengths per listener
FACTOR = 1.25  # between the ends of a strength's interval, at most
_SAME = 1e-3  # positions closer together are one


def position_step(strength: Strength) -> float:
    """Return the distance in position between two strengths with the ratio `FACTOR`."""
    decades = abs(math.log(strength.scaled(strength.strong) / strength.scaled(strength.weak)))
    return math.log(FACTOR) / decades


def next_positions(
    tried: Sequence[Tried], chance: float, levels: Sequence[float], strength: Strength
) -> tuple[float, ...]:
    """Return the positions of `strength` to try next for these levels; empty if none is needed, or `MOST` were tried.

    A level needs a strength above and a strength at or below (the ends of the range come first), then strengths where
    the band meets the level, until the interval is narrower than `FACTOR`.  `chance` is κ, the share that a blind guess
    names."""
    step = position_step(strength)
    shares = {each.position: each.share for each in tried}
    wanted: list[float] = []
    for result in calibrated(tried, chance, levels, usual_slope(strength)):
        target = _target(result, shares, step)
        if target is not None:
            wanted.append(_apart(target, {*shares, *wanted}, step))
    new = dict.fromkeys(each for each in wanted if each not in shares)
    return tuple(new)[: max(0, MOST - len(shares))]


def _target(result: Calibrated, shares: Mapping[float, float], step: float) -> float | None:
    """Return the next position to try for the level, given `shares`, tried position → share of named examples. None:
    the last end of the range was tried, or the position that reaches the level is known to within `step`."""
    if min(shares.values()) > result.level:
        return None if 1.0 in shares else 1.0
    if max(shares.values()) <= result.level:
        return None if 0.0 in shares else 0.0
    low, high = result.interval
    at = min(1.0, max(0.0, result.fitted if result.position is None else result.position))
    near = any(abs(position - at) <= step for position in shares)
    return None if near and high - low <= step else at


def _apart(target: float, positions: set[float], step: float) -> float:
    """Return the target, or a position within `step` of the target if the target was tried."""
    for shift in (0.0, -step / 2, step / 2, -step / 4, step / 4):
        candidate = min(1.0, max(0.0, target + shift))
        if all(abs(candidate - each) > _SAME for each in positions):
            return round(candidate, 4)
    return round(target, 4)
