"""A defense's noise as an accountant reads it, and how its data are sampled."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from bench.points import Stage

Unit = Literal["example", "client"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """Gaussian noise on clipped rows: examples' gradients, or clients' updates.

    `sigmas` are the multipliers σ_t as the paper counts them, one a round, or one a local step (`by_step`). `released`
    is noise over sensitivity in the sum that a step releases, in units of σ, neighbours by adding or removing a row;
    `rows` the same for what one sees after a stage, neighbours by replacing a row, and only for stages after which a
    row is protected.  `unproved`: why no ε holds, None where one does.  With `per_tensor` each of M tensors is clipped
    by itself, and a row's sensitivity is √M times the bound.  `paper`: whether Fed-αCDP's count, of noise σC on a sum,
    applies.  `caveats`: what no accountant covers.
    """

    unit: Unit
    sigmas: tuple[float, ...]
    released: float
    rows: Mapping[Stage, float]
    by_step: bool = False
    per_tensor: bool = False
    paper: bool = True
    unproved: str | None = None
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """Each coordinate that a client sends is a separate report, ε-locally private, in every round.

    `sending`: "split" into coordinates that nobody can link, "whole" without a name, or "named".
    """

    epsilon: float
    sending: Literal["split", "whole", "named"]
    unit: Unit = "client"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How often a row takes part: at rate `q` in each of `per_round` steps a round, of `rounds`.

    `stated` is the paper's other rate for the same sampling, if any.  What runs: in each round K of N clients are drawn
    without replacement, `clients` (K, N; None: unknown), and a client that takes part uses an example with probability
    `used`, and then `uses` times at most.
    """

    q: float
    per_round: int
    rounds: int
    stated: float | None = None
    clients: tuple[int, int] | None = None
    used: float = 1.0
    uses: int = 1


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
    """Fed-αCDP's: an example by B/|D_i| in every local step (it states B·K/|D|, of all `examples`), a client
    by K/N in every round."""
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
    """Over a client's L local steps, the most that Σ n² can be, for an example that stands n times in a step's batch.

    Every pass over the examples uses each once; a batch between two passes may hold one twice.
    """
    passes = max(1, -(-steps * batch // client_examples))
    return 2 * passes if passes > 1 and client_examples % batch else passes
