"""A defense's noise and the data sampling, in the form that accountants need."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from bench.points import Stage

Unit = Literal["example", "client"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """Gaussian noise on clipped rows; a row is an example gradient or a client update."""

    unit: Unit
    sigmas: tuple[float, ...]
    """Noise multipliers σ_t in the paper's convention, per round, or per local step if `by_step`."""
    released: float
    """Noise over sensitivity in the sum that a step releases, in units of σ, if a row is added or removed."""
    rows: Mapping[Stage, float]
    """Noise over sensitivity after each stage which protects a row, in units of σ, if a row is replaced."""
    removed: Mapping[Stage, float] = field(default_factory=dict)
    """The same if a row becomes zero, for stages where this is less than twice the value in `rows`."""
    by_step: bool = False
    per_tensor: bool = False
    """True if each of M tensors is clipped separately: a row's sensitivity is then √M times the bound."""
    paper: bool = True
    """True if Fed-αCDP's accounting, for noise σC on a sum, applies."""
    unproved: str | None = None
    """The reason why no ε is proved; None: ε is proved."""
    caveats: tuple[str, ...] = ()
    """Limits of ε, in words: effects which no accountant covers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """Separate reports, each ε-locally private: every sent coordinate in every round is a report."""

    epsilon: float
    sending: Literal["split", "whole", "named"]
    """`split`: unlinkable coordinates; `whole`: a client's anonymous vector; `named`: a vector with its sender."""
    unit: Unit = "client"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How often training uses a row (an example or a client)."""

    q: float
    """Sampling rate of a row in each step."""
    per_round: int
    """Number of steps per round."""
    rounds: int
    stated: float | None = None
    """Another rate which the paper states for the same sampling; None: no other."""
    clients: tuple[int, int] | None = None
    """(K, N): a round draws K of N clients without replacement; None: unknown."""
    used: float = 1.0
    """Probability that a participating client uses a given example in a round."""
    uses: int = 1
    """Largest number of uses of an example in a round with its client."""


def sampling_of(
    unit: Unit,
    *,
    clients: int,
    per_round: int,
    rounds: int,
    steps: int,
    batch: int,
    client_examples: int,
    examples: int,
) -> Sampling:
    """Return the sampling in Fed-αCDP's convention for a protected unit.  An example has rate B/|D_i| in every local
    step (the paper also states B·K/|D|, |D| = `examples`); a client has rate K/N in every round.
    """
    if unit == "client":
        return Sampling(q=per_round / clients, per_round=1, rounds=rounds, clients=(per_round, clients))
    return Sampling(
        q=min(1.0, batch / client_examples),
        per_round=steps,
        rounds=rounds,
        stated=min(1.0, batch * per_round / examples),
        clients=(per_round, clients),
        used=min(1.0, steps * batch / client_examples),
        uses=uses_of_example(steps=steps, batch=batch, client_examples=client_examples),
    )


def uses_of_example(*, steps: int, batch: int, client_examples: int) -> int:
    """Return the largest Σ n² over a client's L local steps, for an example with n copies in a step's batch.  Every
    pass over the data uses each example once, but a batch across two passes may hold an example twice.
    """
    passes = max(1, -(-steps * batch // client_examples))
    return 2 * passes if passes > 1 and client_examples % batch else passes
