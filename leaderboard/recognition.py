"""Shares of recognised (identified or named) examples, with the chance level and provable upper bounds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bench.ceilings.by_epsilon import ceiling, exceeded
from bench.epsilon import Epsilon
from bench.leaderboard.flags import VIOLATED, Flag
from bench.leaderboard.worst import ExampleKey, WorstCase, readings, share_interval
from bench.record.metrics import NAMED_LIST
from bench.scoring.intervals import effective_trials


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Share of examples that attackers recognise, with chance level and upper bounds. An example is recognised if it is
    identified (nearer to the reconstruction than every stranger) or named (picked among candidates)."""

    value: float
    """Measured share of recognised examples, in [0, 1]."""
    interval: tuple[float, float]
    """95 % confidence interval (low, high) for `value`."""
    chance: float
    """Share expected if every attack guessed blindly: success probability of a blind guess, summed over the attacks, at
    most 1."""
    ceiling: float | None = None
    """Upper bound on this share for any attacker, derived from ε at this interception point; None without a guarantee.
    """
    violated: bool = False
    """True if the measured share is significantly above the ceiling, which refutes the stated ε."""
    here: float | None = None
    """Upper bound for any attacker on these weights and data, measured and not proved. It comes from an attack that
    ranks candidates by the exact likelihood of the reading: the upper end of the interval for its share. None without
    such an attack."""


def most_over_chance(*rates: Rate | None) -> Rate | None:
    """Select the rate that proves most recognition: of `rates`, that which exceeds its chance level by the most; None
    if every rate is None."""
    return max((rate for rate in rates if rate is not None), key=lambda r: r.value - r.chance, default=None)


def recognition(worst: WorstCase) -> tuple[Rate | None, Rate | None, Epsilon | None]:
    """Return the recognition figures of a defense at an interception point: (identified rate, named rate, ε), each None
    if unknown. Identified: the true example is nearer to a reconstruction than every stranger; named: an attacker picks
    the true example among candidates.

    - `worst`: results of all attacks on the defense at this point."""
    spent = worst.privacy.by("tap")
    # comparable only if the exact attack's list has no more strangers than the gallery for identification
    comparable = worst.places if worst.candidates - 1 <= worst.strangers else {}
    identified = _recognised(
        worst.identified, worst.identified_chance, spent, _here(worst, comparable, len(worst.identified_chance))
    )
    named = _recognised(worst.named, worst.named_chance, spent, _here(worst, worst.places, len(worst.named_chance)))
    return identified, named, spent


def _recognised(
    hits: Mapping[ExampleKey, bool],
    chances: Mapping[str, Mapping[ExampleKey, float]],
    spent: Epsilon | None,
    here: float | None,
) -> Rate | None:
    """Return the share of True (recognised) in `hits`, with chance level and ceiling; None without examples. `chances`
    holds the chance of a blind guess by attack and example. `spent` is the ε of the ceiling, and `here` the field of
    `Rate`. The ceiling is concave in chance: by Jensen's inequality, its value at the mean chance bounds the examples'
    mean."""
    interval = share_interval(hits)
    if interval is None:
        return None
    value = sum(hits.values()) / len(hits)
    chance = min(1.0, sum(sum(each.values()) for each in chances.values()) / len(hits))
    limit = ceiling(spent, chance) if chance else None  # a baseline's records have no chance level
    trials = effective_trials(list(map(float, hits.values())), readings(list(hits)))
    return Rate(
        value=value, interval=interval, chance=chance, ceiling=limit, violated=exceeded(value, trials, limit), here=here
    )


def _here(worst: WorstCase, places: Mapping[ExampleKey, int], attackers: int) -> float | None:
    single = all(count == 1 for count in worst.guesses.values())
    if not places or (single and attackers > NAMED_LIST):
        return None
    interval = share_interval({key: place < attackers * worst.guesses[key] for key, place in places.items()})
    return interval and interval[1]


def violations(identified: Rate | None, named: Rate | None, spent: Epsilon | None) -> Iterator[Flag]:
    """Yield a flag (warning) for each rate, `identified` and `named`, that is significantly above its upper bound from
    ε. Such a rate refutes the stated ε, `spent`. A rate or ε of None yields no flag."""
    for what, rate in (("identified", identified), ("named", named)):
        if rate and rate.violated and rate.ceiling is not None and spent:
            yield Flag(
                VIOLATED,
                f"{what} {rate.value:.2f}, where nobody exceeds {rate.ceiling:.2g} if ε = {spent.epsilon:.3g} holds",
            )
