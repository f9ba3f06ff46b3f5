"""The type of a privacy loss ε: computed by `bench.defenses.accounting`, stored in records, shown in tables."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Epsilon:
    """A guarantee of differential privacy: a pair (ε, δ) with its assumptions, or the reason why no ε exists."""

    convention: str
    """Rule of accounting: `valid` (actual sampling), `idealised` (Poisson sampling), `paper` (as in the defense's
    paper), `tap` (for an attacker at an interception point) or `bayesian`; in records of old versions also `tight`."""
    accountant: str
    """Method that composes the privacy losses of the releases, in words."""
    unit: str
    """Protected unit: `example` or `client`."""
    adversary: str
    """The adversary's access, in words: the released models, or an interception point in a round."""
    epsilon: float | None
    """ε of the (ε, δ) guarantee, at least 0; None: no ε exists, with the reason in `absent`."""
    delta: float
    """δ of the (ε, δ) guarantee, in [0, 1); 0 for pure ε."""
    q: float
    """Sampling rate: probability that a step or round uses the protected example or client, in (0, 1]."""
    steps: int
    """Number of composed releases, such as local steps or rounds."""
    multiplier: tuple[float, float] | None
    """Noise multiplier (the noise's standard deviation divided by the sensitivity) of the first and of the last
    release; None: the accountant uses no multiplier."""
    sampling: str
    """Assumed sampling scheme, in words."""
    adjacency: str
    """Relation between two adjacent data sets, in words, such as a removed or a replaced example."""
    caveats: tuple[str, ...] = ()
    """Limits of the guarantee, in words."""
    absent: str | None = None
    """Reason why ε is absent; None if ε exists."""
    removed_multiplier: float | None = None
    """Noise multiplier if the contribution of an example or client is replaced by zero (removal), in place of another
    example's or client's contribution. None: twice the smaller value of `multiplier`."""

    # Records refuse unknown fields, wrong types and NaN (pydantic; a plain dict keeps the accounting free of imports).
    __pydantic_config__ = {"extra": "forbid", "strict": True, "allow_inf_nan": False}
