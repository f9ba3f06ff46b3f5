"""Schedules: how a number changes over the rounds, as pure functions round → value.

Fed-αCDP §5.3 gives the four decays of σ.  Rounds count from 0 here, as everywhere in bench, and each schedule gives
its `initial` value in round 0.  The paper counts from 1: its cyclic formula (with t - 1) does the same, and its three
others would start one step down.  A value never falls below 0: at 0 there is no noise.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from bench.defenses.ranges import at_least

Schedule = Callable[[int], float]


def value_at(number: float | Schedule, round: int) -> float:
    """The number itself, or its schedule's value in this round, counted from 0."""
    return number(round) if callable(number) else number


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """The same value in every round."""

    value: float

    def __post_init__(self) -> None:
        at_least("value", self.value)

    def __call__(self, round: int) -> float:
        del round
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """σ_0·(1 - γ·t), with γ the `slope`, and 0 from t = 1/γ on."""

    initial: float
    slope: float

    def __post_init__(self) -> None:
        at_least("initial", self.initial)
        at_least("slope", self.slope)

    def __call__(self, round: int) -> float:
        return self.initial * max(0.0, 1 - self.slope * round)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staircase:
    """σ_0·(1 - γ·⌊t/Γ⌋), with γ the `drop` and Γ the rounds between two drops, `every`."""

    initial: float
    drop: float
    every: int

    def __post_init__(self) -> None:
        at_least("initial", self.initial)
        at_least("drop", self.drop)
        at_least("every", self.every, 1)

    def __call__(self, round: int) -> float:
        return self.initial * max(0.0, 1 - self.drop * (round // self.every))


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential:
    """σ_0·exp(-γ·t), with γ the `decay`."""

    initial: float
    decay: float

    def __post_init__(self) -> None:
        at_least("initial", self.initial)
        at_least("decay", self.decay)

    def __call__(self, round: int) -> float:
        return self.initial * math.exp(-self.decay * round)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cyclic:
    """(σ_0/2)·(cos(π·mod(t - 1, P)/P) + 1) for the paper's t = round + 1, with P = ⌈T/c⌉.

    T is `rounds`, c is `cycles`: each cycle falls from `initial` nearly to 0, then starts again.
    """

    initial: float
    rounds: int
    cycles: int

    def __post_init__(self) -> None:
        at_least("initial", self.initial)
        at_least("rounds", self.rounds, 1)
        at_least("cycles", self.cycles, 1)

    def __call__(self, round: int) -> float:
        period = -(-self.rounds // self.cycles)
        return self.initial / 2 * (math.cos(math.pi * (round % period) / period) + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsPublished:
    """σ_t = √(2 ln(1.25/δ))/ε_t with ε_t = exp(1.664 t/10001 - 1.1809), δ = 1e-5: the schedule in the
    accounting script of Fed-αCDP's authors, for t = 1 to 10 000 local steps, from 15.78 to 2.99.

    `steps` is the length of this training, in rounds or local steps: t/10001 covers the same range.
    """

    steps: int

    def __post_init__(self) -> None:
        at_least("steps", self.steps, 1)

    def __call__(self, round: int) -> float:
        return math.sqrt(2 * math.log(1.25e5)) / math.exp(1.664 * (round + 1) / (self.steps + 1) - 1.1809)
