"""ε for locally private reports: pure (δ = 0), and proportional to the number of reports."""

from bench.defenses.accounting.mechanism import Reports
from bench.defenses.accounting.report import RELEASED, TAP
from bench.epsilon import Epsilon

_SENT = {"split": "could they be linked", "whole": "sent without a name", "named": "sent under its name"}
_LEARNED = ("weights are clipped to a range that may have been learned from them",)
_UNLINKED = "that the server cannot link reports is no theorem of composition"


def released(reports: Reports, *, rounds: int, coordinates: int) -> tuple[Epsilon, ...]:
    """Return ε of the models released by a training with locally private reports (noised weights from clients), by
    three conventions. A client sends d = `coordinates` reports in each of `rounds` rounds; ε of a report is
    `reports.epsilon`. A message that is a single report counts as d = 1, and has two figures: of a round, and of all.

    - The paper's figure is ε for a single weight in a single round.
    - A single round costs d·ε if the attacker can link the coordinates of a client.
    - All rounds cost rounds·d·ε if the attacker can also link rounds. This figure is valid without shuffling.

    Amplification by shuffling is omitted: its theorems need a small d·ε."""
    if reports.whole:
        return (
            _report("paper", "ε of one message", reports.epsilon, 1, caveats=()),
            _report("valid", "all messages of all rounds: T·ε, pure", rounds * reports.epsilon, rounds, caveats=()),
        )
    whole = coordinates * reports.epsilon
    figures = [
        _report("paper", f"ε of one weight's one report ({_UNLINKED})", reports.epsilon, 1),
        _report("paper", f"a client's reports of one round, {_SENT[reports.sending]}: d·ε", whole, 1),
    ]
    return (*figures, _report("valid", "all reports of all rounds: T·d·ε, pure", rounds * whole, rounds))


def at_tap(reports: Reports, *, coordinates: int, observations: int) -> Epsilon:
    """Return ε against an attacker inside a round who sees all locally private reports (noised weights) of a client.

    - `reports`: ε of a report.
    - `coordinates`: d, number of coordinates that a client sends in a round; each is a report, unless a message is a
      single report (then d = 1).
    - `observations`: number of the attacker's views of such d reports; each costs d·ε."""
    return _report(
        "tap",
        "a client's message of one round: ε, pure" if reports.whole else "a client's reports of one round: d·ε, pure",
        observations * reports.count(coordinates) * reports.epsilon,
        observations,
        adversary=TAP,
        caveats=() if reports.whole else _LEARNED,
    )


def _report(
    convention: str,
    accountant: str,
    epsilon: float,
    steps: int,
    adversary: str = RELEASED,
    caveats: tuple[str, ...] = _LEARNED,
) -> Epsilon:
    return Epsilon(
        convention=convention,
        accountant=accountant,
        unit="client",
        adversary=adversary,
        epsilon=epsilon,
        delta=0.0,
        q=1.0,
        steps=steps,
        multiplier=None,
        sampling="none",
        adjacency="one replaced",
        caveats=caveats,
    )
