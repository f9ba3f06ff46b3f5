"""The result of an audit: a measured lower bound of ε, and the claimed ε."""

from dataclasses import asdict, dataclass
from typing import Any

from bench.audit.bounds import Bound, epsilon_of

VIOLATED = "epsilon-violated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The claimed ε under audit: claimed for a user's pipeline, or proved for a defense."""

    epsilon: float
    """ε at the audit's δ, at least 0."""
    mu: float | None = None
    """μ, the sensitivity divided by the noise's standard deviation, if the claim is a Gaussian mechanism; None: only
    (ε, δ) is claimed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Result of an audit at an interception point: a lower bound of ε, measured in runs on two neighbouring data sets
    (worlds), and the claimed ε."""

    name: str
    """Name of the pipeline or defense, with its parameters."""
    point: str
    """Interception point of the attacker, or `released` for a user's pipeline."""
    worlds: str
    """The difference between the two data sets, in words."""
    stated: float | None
    """ε for a single round by the accounting of the defense's paper or library; None: no such accounting applies, or
    the pipeline is no registered defense."""
    claim: Claim | None
    """The claim under audit: the valid ε of a registered defense, or the caller's claim; None: no claim."""
    absent: str | None = None
    """Reason why a registered defense has no valid ε; None if a claim exists."""
    delta: float
    """δ of the (ε, δ) guarantee under audit, in [0, 1)."""
    confidence: float
    """Probability with which each of the two lower bounds holds, in (0, 1)."""
    runs: int
    """Number of runs on each of the two data sets."""
    epsilon: Bound
    """Lower bound of ε, without an assumption on the noise."""
    mu: Bound
    """Lower bound of μ (sensitivity divided by the noise's standard deviation), if the pipeline is a Gaussian
    mechanism."""
    scores: tuple[str, ...]
    """Names of the scores (functions of the released values); `Bound.score` is an index into these."""
    seconds: float
    """Time that all runs took, in seconds."""

    @property
    def gaussian(self) -> float:
        """Lower bound of ε at the audit's δ, if the pipeline is a Gaussian mechanism; derived from the lower bound
        `mu`."""
        return epsilon_of(self.mu.value, self.delta)

    @property
    def violated(self) -> bool:
        """True if the measured lower bound is above the claimed value, which refutes the claim. A claim of a Gaussian
        mechanism is compared by μ (sensitivity divided by the noise's standard deviation), any other claim by ε."""
        if self.claim is None:
            return False
        if self.claim.mu is not None:
            return self.mu.value > self.claim.mu
        return self.epsilon.value > self.claim.epsilon

    @property
    def evidence(self) -> str:
        """The event behind the lower bound that is compared with the claim, in words: a score above or below a
        threshold, with its probabilities on the two data sets."""
        by_mu = self.claim is None or self.claim.mu is not None
        bound = self.mu if by_mu else self.epsilon
        side = "above" if bound.above else "at most"
        return (
            f"{self.scores[bound.score]} {side} {bound.threshold:.4g}: at least {bound.least:.3g} in world "
            f"{bound.likelier}, at most {bound.most:.3g} in world {1 - bound.likelier}"
        )

    def as_json(self) -> dict[str, Any]:
        """Return all values of the audit as JSON: field name → value. Added are `epsilon_if_gaussian` (property
        `gaussian`), the events behind the bounds, and `fault`, a sentence on the refuted claim (None if not
        refuted)."""
        return {
            **asdict(self),
            "epsilon": self.epsilon.value,
            "epsilon_if_gaussian": self.gaussian,
            "mu": self.mu.value,
            "events": {"epsilon": asdict(self.epsilon), "mu": asdict(self.mu)},
            "evidence": self.evidence,
            "fault": VIOLATED if self.violated else None,
        }
