"""Schedules: pure functions from a round number to a value, such as the noise multiplier σ.

Fed-αCDP §5.3 gives the four decays for σ.  Rounds count from 0, as everywhere in bench; each schedule gives `initial`
in round 0.  The paper counts from 1: its cyclic formula (with t - 1) agrees, but its three other formulas would start a
step lower.  Values never fall below 0; at 0 no noise is added."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from bench.defenses.ranges import at_least

Schedule = Callable[[int], float]


def value_at(number: float | Schedule, round: int) -> float:
    """Return a parameter's value in a `round` (counted from 0). `number` is a constant, or a schedule: a function of
    the round."""
    return number(round) if callable(number) else number


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """Schedule for a noise multiplier or clip bound that stays equal in all rounds."""

    value: float
    """The value in every round."""

    def __post_init__(self) -> None:
        at_least("value", self.value)

    def __call__(self, round: int) -> float:
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """Schedule for a noise multiplier or clip bound with linear decay over rounds t: σ_0·(1 - γ·t), with σ_0 =
    `initial` and γ = `slope`; 0 for t ≥ 1/γ."""

    initial: float
    """σ_0, the value in round 0."""
    slope: float
    """γ, the share of σ_0 lost per round."""

    def __post_init__(self) -> None:
        at_least("initial", self.initial)
        at_least("slope", self.slope)

    def __call__(self, round: int) -> float:
        return self.initial * max(0.0, 1 - self.slope * round)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staircase:
    """Schedule for a noise multiplier or clip bound with stepwise decay over rounds t: σ_0·(1 - γ·⌊t/Γ⌋), at least 0,
    with σ_0 = `initial`, γ = `drop` and Γ = `every` rounds between drops."""

    initial: float
    """σ_0, the value in round 0."""
    drop: float
    """γ, the share of σ_0 lost at each drop."""
    every: int
    """Γ, the number of rounds between drops."""

    def __post_init__(self) -> None:
        at_least("initial", self.initial)
        at_least("drop", self.drop)
        at_least("every", self.every, 1)

    def __call__(self, round: int) -> float:
        return self.initial * max(0.0, 1 - self.drop * (round // self.every))


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential:
    """Schedule for a noise multiplier or clip bound with exponential decay over rounds t: σ_0·exp(-γ·t), with σ_0 =
    `initial` and γ = `decay`."""

    initial: float
    """σ_0, the value in round 0."""
    decay: float
    """γ, the rate of decay per round."""

    def __post_init__(self) -> None:
        at_least("initial", self.initial)
        at_least("decay", self.decay)

    def __call__(self, round: int) -> float:
        return self.initial * math.exp(-self.decay * round)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cyclic:
    """Schedule for a noise multiplier or clip bound with cosine decay in c cycles; in each cycle the value falls from
    σ_0 nearly to 0. The value is (σ_0/2)·(cos(π·mod(t - 1, P)/P) + 1), with t = round + 1 (the paper's t) and P =
    ⌈T/c⌉."""

    initial: float
    """σ_0, the value at the start of a cycle."""
    rounds: int
    """T, the number of rounds."""
    cycles: int
    """c, the number of cycles."""

    def __post_init__(self) -> None:
        at_least("initial", self.initial)
        at_least("rounds", self.rounds, 1)
        at_least("cycles", self.cycles, 1)

    def __call__(self, round: int) -> float:
        period = -(-self.rounds // self.cycles)
        return self.initial / 2 * (math.cos(math.pi * (round % period) / period) + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsPublished:
    """Schedule for the noise multiplier σ as in the accounting script of Fed-αCDP's authors: σ falls from 15.78 to 2.99
    over t = 1 to 10 000 local steps. σ_t = √(2 ln(1.25/δ))/ε_t, ε_t = exp(1.664 t/10001 - 1.1809), δ = 1e-5."""

    steps: int
    """Length of the training in rounds or local steps; t/10001 is stretched to this length."""

    def __post_init__(self) -> None:
        at_least("steps", self.steps, 1)

    def __call__(self, round: int) -> float:
        return math.sqrt(2 * math.log(1.25e5)) / math.exp(1.664 * (round + 1) / (self.steps + 1) - 1.1809)
