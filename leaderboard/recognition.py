"""Examples that attackers recognise, identified or named, beside chance and beside what is provable."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bench.ceilings.by_epsilon import ceiling, exceeded
from bench.leaderboard.flags import VIOLATED, Flag
from bench.leaderboard.worst import ExampleKey, WorstCase, readings, share_interval
from bench.record.schema import Epsilon, Privacy
from bench.scoring.intervals import effective_trials


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A share of examples with its 95 % interval; `chance` is of blind guesses, as many as attacks count in it.

    `ceiling`: the most that any attacker reaches behind the ε at this point; None: nothing is proved.  `violated`: the
    share refutes it.
    """

    value: float
    interval: tuple[float, float]
    chance: float
    ceiling: float | None = None
    violated: bool = False


def recognition(worst: WorstCase) -> tuple[Rate | None, Rate | None, Epsilon | None]:
    """What some attack identified, and named, at a point, and the ε there."""
    results = (record.attack for records in worst.records.values() for record in records if record.attack)
    spent = next((result.privacy for result in results), Privacy()).by("tap")
    identified = _recognised(worst.identified, worst.identified_chance, spent)
    return identified, _recognised(worst.named, worst.named_chance, spent), spent


def _recognised(
    hits: Mapping[ExampleKey, bool], chances: Mapping[str, float], spent: Epsilon | None
) -> Rate | None:
    interval = share_interval(hits)
    if interval is None:
        return None
    value, chance = sum(hits.values()) / len(hits), min(1.0, sum(chances.values()))
    limit = ceiling(spent, chance)
    trials = effective_trials(list(map(float, hits.values())), readings(list(hits)))
    return Rate(
        value=value, interval=interval, chance=chance, ceiling=limit, violated=exceeded(value, trials, limit)
    )


def violations(identified: Rate | None, named: Rate | None, spent: Epsilon | None) -> Iterator[Flag]:
    """The fault of a row whose measured shares refute its ε."""
    for what, rate in (("identified", identified), ("named", named)):
        if rate and rate.violated and rate.ceiling is not None and spent:
            yield Flag(
                VIOLATED,
                f"{what} {rate.value:.2f}, where nobody exceeds {rate.ceiling:.2g} if ε = {spent.epsilon:.3g} holds",
            )
