"""ε of locally private reports: pure, and as large as they are many."""

from bench.defenses.accounting.mechanism import Reports
from bench.defenses.accounting.report import RELEASED, TAP, Spent

_SENT = {"split": "could they be linked", "whole": "sent without a name", "named": "sent under its name"}
_UNLINKED = "that the server cannot link reports is no theorem of composition"


def released(reports: Reports, *, rounds: int, coordinates: int) -> tuple[Spent, ...]:
    """What so many rounds of d reports each spend: as the paper counts, as sent, and for good.

    The paper's is ε, of one weight in one round.  Composition gives d·ε a round for who can link a client's
    coordinates, and rounds·d·ε for who can link its rounds as well: the tight figure, since shuffling is no part of it.
    An amplification by shuffling is not counted: its theorems ask for d·ε small.
    """
    whole = coordinates * reports.epsilon
    found = [
        _spent("paper", f"ε of one weight's one report ({_UNLINKED})", reports.epsilon, 1),
        _spent("paper", f"a client's reports of one round, {_SENT[reports.sending]}: d·ε", whole, 1),
    ]
    return (*found, _spent("tight", "all reports of all rounds: T·d·ε, pure", rounds * whole, rounds))


def at_tap(reports: Reports, *, coordinates: int, observations: int) -> Spent:
    """What one client's reports of a round tell who sees them together: d·ε, each observation again."""
    return _spent(
        "tap", "a client's reports of one round: d·ε, pure", observations * coordinates * reports.epsilon,
        observations, adversary=TAP,
    )  # fmt: skip


def _spent(convention: str, accountant: str, epsilon: float, steps: int, adversary: str = RELEASED) -> Spent:
    return Spent(
        convention=convention, accountant=accountant, unit="client", adversary=adversary,  # type: ignore[arg-type]
        epsilon=epsilon, delta=0.0, q=1.0, steps=steps, multiplier=None, sampling="none",
        adjacency="one replaced", caveats=("weights are clipped to a range that may have been learned from them",),
    )  # fmt: skip
