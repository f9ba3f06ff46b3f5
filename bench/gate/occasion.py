"""Circumstances of a comparison, for every form of the verdict: the baseline's change, and places in the code."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A line in a source file of the repository, for annotations."""

    path: str
    """Path relative to the repository's root, with `/` between folders."""
    line: int = 1
    """Line in the file, from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occasion:
    """Circumstances of a gate's comparison that its report mentions: changes of the baseline, the reason of their
    acceptance, and remarks."""

    baseline: str = "gate.json"
    """Path of the baseline file, relative to the repository's root; the path as typed outside a repository."""
    base: str = ""
    """The base revision, a git commit whose baseline decides; empty without a base revision."""
    altered: tuple[str, ...] = ()
    """Differences between the baseline of the base revision and of this checkout, in words."""
    accepted: str | None = None
    """The user's reason for accepting the changed baseline; None: no change was accepted."""
    notes: tuple[str, ...] = ()
    """Remarks, such as a dirty working tree."""
    command: str = ""
    """The command that repeats the comparison."""
    places: Mapping[str, Place] = field(default_factory=dict)
    """Map from a defense's name to the line of its class, for classes inside the repository."""

    def place(self, defense: str) -> Place:
        """Return the source line to which messages about a `defense` are attached: the line of its class, or the
        baseline file for a class outside the repository. `defense` is the name, with or without parameters."""
        return self.places.get(defense.partition("(")[0], Place(path=self.baseline))
