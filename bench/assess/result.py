"""Result of an assessment: leaked shares for each listener (an attacker at a point of the round), and defenses that
help."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bench.errors import BenchError
from bench.record.schema import Share

FIGURES = ("reconstructed", "identified", "recognised")
TITLES = {"update": "The message that leaves the client", "inside": "Inside the client"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A measured share of the client's examples, such as the share of reconstructed examples, with its interval and two
    comparisons: a blind guess, and an upper bound for every attacker."""

    share: Share
    """The measured share, with its 95 % interval."""
    of: int
    """Number of examples (or trials) in the measurement."""
    chance: float | None = None
    """Share that a blind guess without the update reaches; None: not applicable."""
    ceiling: float | None = None
    """Upper bound on the share for every attacker, by a proved ε; None: no ε is proved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Outcome of an attack in an assessment: its result in words, or why it did not run. The attack was for a listener
    (an attacker at a point of the round)."""

    attack: str
    """Name of the attack."""
    line: str
    """The attack's result in words, or the reason why the attack did not run."""
    seconds: float
    """Duration of the attack, in seconds."""
    cut: bool = False
    """True if the attack searched for fewer evaluations than are useful, because the time was limited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """An attacker at a point of the round, with the attacks on its reading (the observed update) and the measured
    shares."""

    name: str
    """`update`: the message that leaves the client; `inside`: single examples' gradients inside the client."""
    reads: str
    """The listener's reading, in words."""
    figures: Mapping[str, Figure]
    """Name of a measurement → the share of examples. `reconstructed`: examples that an attack reconstructs;
    `identified`: reconstructions nearer to their example than to strangers; `recognised`: examples that the gallery
    attack picks among candidates."""
    attempts: tuple[Attempt, ...]
    """The attacks on the listener's reading, in the order of their runs."""
    picture: str | None
    """Name of the file with a picture of true examples above reconstructions; None: no picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """The assessed client behind a defense, at a calibrated strength: its recognised examples, and the accuracy that
    remains."""

    defense: str
    """The defense with its parameters, as typed after `--defense`; `none` for the client without a further defense."""
    level: str
    """Level (`L1` or `L2`, a bound on the share of recognised examples) for which the strength is calibrated; empty for
    a family without a strength."""
    recognised: Figure | None
    """Measured share of examples that an attacker picks among candidates; the attacker knows the defense, the labels
    and all other examples. None: not measured."""
    kept: float | None
    """Share of the undefended test accuracy that remains with the defense, from the shipped trade-off, in [0, 1]; None
    if the trade-off lacks the defense."""
    note: str = ""
    """Reason for a missing value, or a caveat from the shipped trade-off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """Report about a client: how much leaks from its update, the facts that decide how much, and defenses that would
    help."""

    declaration: str
    """A line of text on the check whether the declared or recorded training gives the update."""
    explained: bool
    """True if the declared or recorded training gives the update; otherwise the update was not attacked."""
    listeners: tuple[Listener, ...]
    """Attackers at points of the round; first the attacker with the update that leaves the client."""
    decides: tuple[str, ...]
    """Sentences about the facts that decide how much leaks: batch, steps, rank, labels, noise."""
    remedies: tuple[Remedy, ...]
    """Recognised examples and accuracy without a defense, then behind five shipped families of defenses."""
    remedies_of: str
    """The gradient on which `remedies` are measured, in words; if `remedies` is empty, the reason."""
    notes: tuple[str, ...]
    """Remarks for the report, such as the known defenses in a user's Flower app."""
    seconds: float
    """Duration of the assessment, in seconds."""
    page: str
    """Path of the report's HTML page."""

    @property
    def verdict(self) -> str:
        """Summary with a sentence for each listener (an attacker at a point of the round): the share of examples that
        leaked."""
        return " ".join(f"{TITLES[each.name]}: {_counts(each)}." for each in self.listeners)

    def __str__(self) -> str:
        return f"{self.verdict} Report: {self.page}"

    def figure(self, name: str) -> Figure | None:
        """Return the measured share `name` (`reconstructed`, `identified` or `recognised`) for the update that leaves
        the client; None if it was not measured. Raises `BenchError` for another name."""
        if name not in FIGURES:
            raise BenchError(f"{name!r} is no figure; there are {', '.join(FIGURES)}")
        return next((each.figures.get(name) for each in self.listeners if each.name == "update"), None)

    def json(self) -> dict[str, Any]:
        """Return the whole report as JSON values, field name → value; pictures are file names."""
        return asdict(self)


def _counts(listener: Listener) -> str:
    """Return the listener's figures as counts of examples."""
    cut = any(attempt.cut for attempt in listener.attempts)
    counts = [
        f"{round(each.share.value * each.of)} of {each.of} {name}"
        + (f" (chance {each.chance:.0%})" if name == "recognised" and each.chance else "")
        + (" (the time limit ended the search)" if name == "reconstructed" and cut and each.share.value < 1 else "")
        for name, each in listener.figures.items()
    ]
    return ", ".join(counts) or "not measured, as no attack ran"
