"""The shipped trade-off (`bench.record.tradeoff`): families of defenses at equal leakage."""

from bench.record import tradeoff
from bench.record.tradeoff import Tradeoff
from bench.reference import store


def shipped_tradeoff() -> Tradeoff | None:
    """Return the shipped trade-off between accuracy and leakage; None if this package has none. Raises `RecordError`
    for a damaged file."""
    path = store.FOLDER / tradeoff.FILE
    return tradeoff.read(path) if path.is_file() else None
