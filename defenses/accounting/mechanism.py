"""A defense's noise as an accountant reads it, and the data sampling."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from bench.points import Stage

Unit = Literal["example", "client"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """Gaussian noise on clipped rows: example gradients, or client updates."""

    unit: Unit
    sigmas: tuple[float, ...]
    """Multipliers σ_t as the paper counts them: per round, or per local step (`by_step`)."""
    released: float
    """Noise over sensitivity in the sum that a step releases, in units of σ; neighbours: a row added or removed."""
    rows: Mapping[Stage, float]
    """Noise over sensitivity after a stage, for stages that protect a row, in units of σ; neighbours: a row
    replaced."""
    by_step: bool = False
    per_tensor: bool = False
    """Each of M tensors is clipped separately: a row's sensitivity is √M times the bound."""
    paper: bool = True
    """Fed-αCDP's count, for noise σC on a sum, applies."""
    unproved: str | None = None
    """Reason that no ε holds; None if an ε holds."""
    caveats: tuple[str, ...] = ()
    """Effects outside every accountant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """Separate reports: each sent coordinate is ε-locally private, in every round."""

    epsilon: float
    sending: Literal["split", "whole", "named"]
    """"split" into unlinkable coordinates, "whole" without a name, or "named"."""
    unit: Unit = "client"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Participation of a row."""

    q: float
    """Rate in each step."""
    per_round: int
    """Steps per round."""
    rounds: int
    stated: float | None = None
    """The paper's second rate for the same sampling, if any."""
    clients: tuple[int, int] | None = None
    """(K, N): K clients drawn without replacement from N in each actual round; None: unknown."""
    used: float = 1.0
    """Probability that a participating client uses an example in a round."""
    uses: int = 1
    """Largest number of uses in such a round."""


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
    """Fed-αCDP's sampling: an example at B/|D_i| in every local step (stated: B·K/|D|, over all `examples`), a client
    at K/N in every round."""
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
    """Largest Σ n² over a client's L local steps, for an example with n copies in a step's batch.

    Every pass uses each example once; a batch across two passes may hold an example twice.
    """
    passes = max(1, -(-steps * batch // client_examples))
    return 2 * passes if passes > 1 and client_examples % batch else passes
