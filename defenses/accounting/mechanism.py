"""A defense's noise and the data sampling, in the form that accountants need."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from bench.points import Stage

Unit = Literal["example", "client"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """Gaussian noise on clipped rows, in the form that accountants need; a row is an example gradient or a client
    update."""

    unit: Unit
    """Protected unit: an example or a client."""
    sigmas: tuple[float, ...]
    """Noise multipliers σ_t in the paper's convention, per round, or per local step if `by_step`."""
    released: float
    """Noise deviation over sensitivity in the sum that a step releases, if a row is added or removed; in units of σ."""
    rows: Mapping[Stage, float]
    """Stage → noise deviation over sensitivity after this stage, if a row is replaced; in units of σ. Stages without
    protection are left out."""
    removed: Mapping[Stage, float] = field(default_factory=dict)
    """Stage → noise deviation over sensitivity after this stage, if a row becomes zero; in units of σ. A stage in
    `rows` but not in this map has twice its value in `rows`, because a replacement usually moves the output twice as
    far."""
    by_step: bool = False
    """True if `sigmas` has an entry per local step; else per round."""
    per_tensor: bool = False
    """True if each of M tensors is clipped separately: a row's sensitivity is then √M times the bound."""
    paper: bool = True
    """True if Fed-αCDP's accounting applies, for noise σC on a sum of rows clipped to C."""
    unproved: str | None = None
    """Reason why no ε is proved; None: ε is proved."""
    caveats: tuple[str, ...] = ()
    """Limits of ε, in words: effects that no accountant covers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """Locally private reports: each sent coordinate is a report."""

    epsilon: float
    """ε of a report."""
    sending: Literal["split", "whole", "named"]
    """`split`: unlinkable coordinates; `whole`: a client's anonymous vector; `named`: a vector with its sender."""
    unit: Unit = "client"
    """Protected unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Frequency with which a training uses a row (an example or a client)."""

    q: float
    """Sampling rate of a row in each step."""
    per_round: int
    """Number of steps per round."""
    rounds: int
    """Number of rounds."""
    stated: float | None = None
    """Another rate stated by the paper for the same sampling; None: no other."""
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
    """Return the sampling of a protected unit, in Fed-αCDP's convention.

    - A client has the rate K/N in every round: K = `per_round` of N = `clients`.
    - An example has the rate B/|D_i| in every local step: B = `batch`, |D_i| = `client_examples`. The paper also states
      B·K/|D|, |D| = `examples`.

    `rounds` and `steps` are the numbers of rounds, and of local steps in a round."""
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
    """Return the largest Σ n² over the L = `steps` local steps of a client, for an example with n copies in a batch.
    Every pass over the `client_examples` examples uses each example once, but a batch across two passes may hold an
    example twice."""
    passes = max(1, -(-steps * batch // client_examples))
    return 2 * passes if passes > 1 and client_examples % batch else passes
