"""A defense's noise and the data sampling, in the form that accountants need."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from bench.points import Stage

Unit = Literal["example", "client"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """Noise and sensitivity of a defense that clips rows and adds Gaussian noise: the input from which accountants
    compute ε. A row is an example's gradient or a client's update. The noise multiplier (noise deviation over
    sensitivity) is σ_t times a factor, which depends on the attacker's access."""

    unit: Unit
    """Protected unit: an example or a client."""
    sigmas: tuple[float, ...]
    """Noise multipliers σ_t as the defense's paper states them, an entry for each round, or for each local step if
    `by_step`."""
    released: float
    """The factor for the sum released by a step: σ_t times `released` is noise deviation over sensitivity, if a row is
    added or removed."""
    rows: Mapping[Stage, float]
    """Map from stage (place in the round) to the factor for the tensors after this stage, if a row is replaced: σ_t
    times the factor is noise deviation over sensitivity. Stages without protection are left out."""
    removed: Mapping[Stage, float] = field(default_factory=dict)
    """Map from stage to the factor for the tensors after this stage, if a row becomes zero. A stage without an entry
    has twice its value in `rows`, because a replacement usually moves the output twice as far."""
    by_step: bool = False
    """True if `sigmas` has an entry per local step, False for an entry per round."""
    per_tensor: bool = False
    """True if each of M tensors is clipped separately: a row's sensitivity is then √M times the bound of a single
    tensor."""
    paper: bool = True
    """True if Fed-αCDP's accounting applies, for noise σC on a sum of rows clipped to C."""
    stated: float | None = None
    """ε of a round as the defense's library states it; None: no library states an ε, or the paper's accounting
    applies."""
    unproved: str | None = None
    """Reason why no ε is proved; None: ε is proved."""
    caveats: tuple[str, ...] = ()
    """Limits of ε, in words: effects that no accountant covers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """Local privacy of a defense in which clients randomise each sent coordinate (a report) themselves: the input from
    which accountants compute ε."""

    epsilon: float
    """ε of a report."""
    sending: Literal["split", "whole", "named"]
    """Links that the server sees: `split`, none between a client's coordinates; `whole`, a client's vector without its
    sender; `named`, a client's vector with its sender."""
    unit: Unit = "client"
    """Protected unit: a client."""
    whole: bool = False
    """True if a client's message with all coordinates is a single report."""

    def count(self, coordinates: int) -> int:
        """Return the number of reports in a client's message with `coordinates` coordinates."""
        return 1 if self.whole else coordinates


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Frequency with which a training uses a protected row (an example or a client): the input for amplification by
    sampling and for composition over rounds."""

    q: float
    """Sampling rate: the probability that a step uses a given row (an example or a client)."""
    per_round: int
    """Number of steps per round."""
    rounds: int
    """Number of rounds."""
    stated: float | None = None
    """Sampling rate that the paper states for the same sampling; None if it equals `q`."""
    clients: tuple[int, int] | None = None
    """(K, N): a round draws K of N clients without replacement; None: unknown."""
    used: float = 1.0
    """Probability that a participating client uses a given example in a round."""
    uses: int = 1
    """Largest weight of a single example in a round of its client: Σ n² over the local steps, if n copies of the
    example are in a step's batch."""


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
    """Derive from a federated setting how often a training uses a protected unit (an example or a client), for
    accountants; rates follow Fed-αCDP's convention.

    - `unit`: a client has the rate K/N in every round. An example has the rate B/|D_i| in every local step; the field
      `stated` of the result holds the paper's second rate, B·K/|D|.
    - `clients`, `per_round`: N clients, of which K take part in a round.
    - `rounds`, `steps`: numbers of rounds, and of local steps in a round.
    - `batch`, `client_examples`, `examples`: B, |D_i| and |D|, the numbers of examples in a batch, a client and all
      clients."""
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
    """Return the worst-case weight of a single example in a client's round, for ε against an attacker who knows the
    rounds with this example: Σ n² over the local steps, with n copies of the example in a step's batch. Every pass over
    the examples uses each example once, but a batch across two passes may hold an example twice.

    - `steps`: number of local steps; `batch`: batch size.
    - `client_examples`: number of the client's examples."""
    passes = max(1, -(-steps * batch // client_examples))
    return 2 * passes if passes > 1 and client_examples % batch else passes
