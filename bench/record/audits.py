"""Measured lower bounds of ε for the defenses on a trade-off board.  `bench audit --board` makes these."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from bench.errors import RecordError
from bench.record.files import write_atomically

FILE = "audits.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """ε of a single reading (observed update) behind a defense: stated, valid, and measured from below in many runs on
    two neighbouring data sets."""

    __pydantic_config__ = {"extra": "forbid", "allow_inf_nan": False}
    dataset: str
    """Name of the board's data set."""
    model: str
    """Name of the board's model."""
    point: str
    """Interception point of the attacker."""
    setting: str
    """Defense with its parameters, such as `dp-sgd:clip=0.5,sigma=1.01`."""
    stated: float | None
    """ε as the defense's paper or library counts for a round; None: neither states an ε."""
    valid: float | None
    """The harness's ε, for a replaced example or client; None: no ε is proved."""
    absent: str | None
    """Reason for a missing `valid`, in words; None with `valid`."""
    least: float
    """Measured lower bound of ε, without an assumption on the noise."""
    gaussian: float | None
    """Measured lower bound of ε if the noise is Gaussian; None: the harness proves no Gaussian mechanism."""
    refuted: bool
    """Whether the measured bound refutes `valid`."""
    most: float
    """Largest lower bound that this number of runs can prove without an assumption."""
    runs: int
    """Number of runs on each of the two data sets."""
    delta: float
    """δ of the (ε, δ) guarantee."""
    confidence: float
    """Probability with which each lower bound holds."""
    seed: int
    """Seed of the runs."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Data set, model, interception point and defense with parameters: a single audit has these."""
        return self.dataset, self.model, self.point, self.setting

    @property
    def proven(self) -> float:
        """Largest measured lower bound of ε: with the assumption of Gaussian noise if the harness proves this noise,
        otherwise without an assumption."""
        return self.least if self.gaussian is None else max(self.least, self.gaussian)


_AUDITS = TypeAdapter(tuple[Audited, ...])


def write(folder: Path, audits: Iterable[Audited]) -> Path:
    """Write `audits` into the file `audits.json` of `folder`, sorted; return the file's path."""
    path = folder / FILE
    order = sorted(audits, key=lambda each: each.key)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, _AUDITS.dump_json(tuple(order), indent=1) + b"\n")
    return path


def read(folder: Path) -> tuple[Audited, ...]:
    """Return the audits in the file `audits.json` of `folder`; empty without this file. Raises `RecordError` for other
    content."""
    path = folder / FILE
    if not path.is_file():
        return ()
    try:
        return _AUDITS.validate_json(path.read_bytes())
    except ValidationError as error:
        raise RecordError(
            f"{path}: no audits ({error.error_count()} faults); delete it, then run `bench audit --board {folder}`"
        ) from None
