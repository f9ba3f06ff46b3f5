"""ε as a value: computed by `bench.defenses.accounting`, kept in records, read by every view."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Epsilon:
    """A figure for ε at δ with its meaning, or the reason for its absence."""

    convention: str
    """`valid`, `idealised`, `paper`, `tap` or `bayesian`; before protocol 3 also `tight`."""
    accountant: str
    """Composition method, in words."""
    unit: str
    """Protected unit: `example` or `client`."""
    adversary: str
    """Adversary's access: the released models, or a tap."""
    epsilon: float | None
    """ε, from 0 upward; None: absent."""
    delta: float
    """δ, in (0, 1)."""
    q: float
    """Sampling rate, in (0, 1]."""
    steps: int
    """Composed releases."""
    multiplier: tuple[float, float] | None
    """First and last noise multiplier: standard deviation over sensitivity."""
    sampling: str
    """Assumed sampling scheme, in words."""
    adjacency: str
    """Relation between adjacent data sets, in words."""
    caveats: tuple[str, ...] = ()
    """Limits, in words."""
    absent: str | None = None
    """Reason for an absent ε."""

    # Records refuse unknown fields, wrong types and NaN (pydantic; a plain dict keeps the accounting free of imports).
    __pydantic_config__ = {"extra": "forbid", "strict": True, "allow_inf_nan": False}
