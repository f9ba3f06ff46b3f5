"""The shipped trade-off (`bench.record.tradeoff`): families of defenses at equal leakage."""

from bench.record import tradeoff
from bench.record.tradeoff import Tradeoff, joined
from bench.reference import store


def shipped_tradeoff() -> Tradeoff | None:
    """Return the shipped trade-off between accuracy and leakage of all published defenses; None if this package has
    none. Raises `RecordError` for a damaged file."""
    path = store.FOLDER / tradeoff.FILE
    return tradeoff.read(path) if path.is_file() else None


def with_shipped(*own: Tradeoff) -> Tradeoff | None:
    """Put a run's calibration among the published defenses: return the shipped trade-off, with the rows of the
    trade-offs `own` in place of shipped rows of the same defenses. None if there are no trade-offs. Raises
    `RecordError` for a damaged shipped file."""
    shipped = shipped_tradeoff()
    parts = own if shipped is None else (shipped, *own)
    return joined(parts) if parts else None
