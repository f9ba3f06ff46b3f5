"""Choice of the next strengths of a defense to measure, in the first round and at trained weights."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from bench.calibration.curve import Counts, LevelStrength, calibrated, usual_slope
from bench.defenses.strength import Strength

FIRST = (0.25, 0.5, 0.75)
MOST = 8  # strengths per listener in the first round
MOST_TRAINED = 6  # strengths per listener at trained weights
FACTOR = 1.25  # between the ends of a strength's interval, at most
_SAME = 1e-3  # positions closer together are one


def position_step(strength: Strength) -> float:
    """Return the precision of the search for a strength, as a difference in position (0 weak, 1 strong). Two values of
    the strength parameter `strength` with the ratio `FACTOR` have positions that differ by this step."""
    decades = abs(math.log(strength.scaled(strength.strong) / strength.scaled(strength.weak)))
    return math.log(FACTOR) / decades


def next_positions(
    counts: Sequence[Counts], chance: float, levels: Sequence[float], strength: Strength
) -> tuple[float, ...]:
    """Return the strengths of a defense to measure next, as positions (0 weak, 1 strong); empty if no further strength
    is needed, or if `MOST` were measured.

    - `counts`: numbers of named examples (picked by the attacker among candidates) at the strengths measured so far.
    - `chance`: share of examples that a blind guess names.
    - `levels`: largest permitted shares of named examples, for each of which a strength is searched.
    - `strength`: the defense's strength parameter with its range.

    Each level needs a measured share above the level, and a share at or below the level; the ends of the range come
    first. Then come strengths where the upper confidence band meets the level, until the interval is narrower than
    `FACTOR`."""
    step = position_step(strength)
    shares = {each.position: each.share for each in counts}
    wanted: list[float] = []
    for result in calibrated(counts, chance, levels, usual_slope(strength)):
        target = _target(result, shares, step)
        if target is not None:
            wanted.append(_apart(target, {*shares, *wanted}, step))
    new = dict.fromkeys(each for each in wanted if each not in shares)
    return tuple(new)[: max(0, MOST - len(shares))]


def _target(result: LevelStrength, shares: Mapping[float, float], step: float) -> float | None:
    """Return the next position to measure for the level, given `shares`, position → share of named examples. None: the
    last end of the range was measured, or the position that reaches the level is known to within `step`."""
    if min(shares.values()) > result.level:
        return None if 1.0 in shares else 1.0
    if max(shares.values()) <= result.level:
        return None if 0.0 in shares else 0.0
    low, high = result.interval
    at = min(1.0, max(0.0, result.fitted if result.position is None else result.position))
    near = any(abs(position - at) <= step for position in shares)
    return None if near and high - low <= step else at


def _apart(target: float, positions: set[float], step: float) -> float:
    """Return the target, or a position within `step` of the target if the target was measured."""
    for shift in (0.0, -step / 2, step / 2, -step / 4, step / 4):
        candidate = min(1.0, max(0.0, target + shift))
        if all(abs(candidate - each) > _SAME for each in positions):
            return round(candidate, 4)
    return round(target, 4)


def next_trained(
    trained: Sequence[Counts],
    first: Mapping[float, float],
    chance: float,
    strength: Strength,
    diverged: Collection[float] = (),
) -> tuple[float, ...]:
    """Return the strengths of a defense to measure next at trained weights, as positions (0 weak, 1 strong); empty if
    no further strength is needed, or if `MOST_TRAINED` were measured.

    - `trained`: numbers of named examples (picked by the attacker among candidates) at trained weights, for each
      strength measured so far.
    - `first`: level (largest permitted share of named examples) → position calibrated in the first round.
    - `chance`: share of examples that a blind guess names.
    - `strength`: the defense's strength parameter with its range.
    - `diverged`: positions of strengths whose trainings diverged, and which have no counts.

    The positions in `first` come first. Then comes, for each level, the position where the upper confidence band meets
    the level, unless a strength within a factor `FACTOR` was already measured."""
    step = position_step(strength)
    positions = {*diverged, *(each.position for each in trained)}
    new = [each for each in first.values() if each not in positions]
    if not new:
        for level, start in first.items():
            (result,) = calibrated(trained, chance, [level], usual_slope(strength))
            target = _upper(result, start)
            if all(each.share > level for each in trained):
                target = min(1.0, max(target, round(max(positions) + 1.5 * step, 4)))
            if all(abs(target - position) > step for position in positions):
                new.append(target)
    return tuple(dict.fromkeys(new))[: max(0, MOST_TRAINED - len(positions))]


def raised(trained: Sequence[Counts], level: float, start: float, chance: float, strength: Strength) -> LevelStrength:
    """Return the weakest strength of a defense, from position `start` on, that also meets `level` at trained weights.
    Its position is None if no measured strength meets the level.

    - `trained`: numbers of named examples (picked by the attacker among candidates) at trained weights, for each
      measured strength.
    - `level`: largest permitted share of named examples.
    - `start`: weakest allowed position of the strength (0 weak, 1 strong).
    - `chance`: share of examples that a blind guess names.
    - `strength`: the defense's strength parameter with its range."""
    (result,) = calibrated(trained, chance, [level], usual_slope(strength))
    low, high = result.interval
    position = None if min(each.share for each in trained) > level else _upper(result, start)
    return replace(result, position=position, interval=(max(start, low), max(start, high)))


def _upper(result: LevelStrength, start: float) -> float:
    return max(start, round(min(1.0, result.interval[1]), 4))
