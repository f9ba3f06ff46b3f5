"""The value type for ε: computed by `bench.defenses.accounting`, kept in records, read by every view."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Epsilon:
    """A value of ε at δ with its meaning, or the reason why no ε exists."""

    convention: str
    """`valid`, `idealised`, `paper`, `tap` or `bayesian`; before protocol 3 also `tight`."""
    accountant: str
    """Composition method, in words."""
    unit: str
    """Protected unit: `example` or `client`."""
    adversary: str
    """The adversary's access: the released models, or a tap."""
    epsilon: float | None
    """ε, at least 0; None: absent, with the reason in `absent`."""
    delta: float
    """δ, in [0, 1); 0 for pure ε."""
    q: float
    """Sampling rate, in (0, 1]."""
    steps: int
    """Number of composed releases."""
    multiplier: tuple[float, float] | None
    """First and last noise multiplier (deviation over sensitivity); None: the accountant uses no multiplier."""
    sampling: str
    """Assumed sampling scheme, in words."""
    adjacency: str
    """Relation between adjacent data sets, in words."""
    caveats: tuple[str, ...] = ()
    """Limits of the figure, in words."""
    absent: str | None = None
    """Reason why ε is absent; None if ε exists."""

    # Records refuse unknown fields, wrong types and NaN (pydantic; a plain dict keeps the accounting free of imports).
    __pydantic_config__ = {"extra": "forbid", "strict": True, "allow_inf_nan": False}
