"""The next strengths to try, from the strengths tried so far."""

import math
from collections.abc import Sequence

from bench.calibration.curve import Calibrated, Tried, calibrated
from bench.defenses.strength import Strength

FIRST = (0.0, 0.25, 0.5, 0.75, 1.0)
MOST = 10  # strengths per listener
FACTOR = 1.25  # between the ends of a strength's interval, at most
_SAME = 1e-3  # positions closer together are one


def position_step(strength: Strength) -> float:
    """Return the distance in position between two strengths with the ratio `FACTOR`."""
    decades = abs(math.log(strength.scaled(strength.strong) / strength.scaled(strength.weak)))
    return math.log(FACTOR) / decades


def settled(result: Calibrated, tried: Sequence[Tried], step: float) -> bool:
    """Return whether a level needs no further strength: the interval is narrow and a strength inside was tried, or the
    strongest strength exceeds the level, or the weakest meets the level.  `step` is the widest interval, in position.
    """
    shares = {each.position: each.share for each in tried}
    if result.position is None:
        return max(shares) >= 1 and shares[max(shares)] > result.level
    if result.position <= min(shares):
        return True
    low, high = result.interval
    near = any(abs(position - result.position) <= step for position in shares)
    return near and high - low <= step


def next_positions(tried: Sequence[Tried], chance: float, levels: Sequence[float], step: float) -> tuple[float, ...]:
    """Return the positions to try next for these levels; empty if all levels are settled, or `MOST` were tried.

    `chance` is κ, the share that a blind guess names; `step` is the widest interval of a settled strength, in position.
    """
    positions = {each.position for each in tried}
    wanted: list[float] = []
    for result in calibrated(tried, chance, levels):
        if settled(result, tried, step):
            continue
        target = min(1.0, max(0.0, result.fitted if result.position is None else result.position))
        wanted.append(_apart(target, positions | set(wanted), step))
    return tuple(each for each in wanted if each not in positions)[: max(0, MOST - len(positions))]


def _apart(target: float, positions: set[float], step: float) -> float:
    """Return the target, or a position within `step` of the target if the target was tried."""
    for shift in (0.0, -step / 2, step / 2, -step / 4, step / 4):
        candidate = min(1.0, max(0.0, target + shift))
        if all(abs(candidate - each) > _SAME for each in positions):
            return round(candidate, 4)
    return round(target, 4)
