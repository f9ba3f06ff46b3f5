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
    trade-offs `own` in place of shipped rows of the same defenses. Shipped rows with another federated setting are left
    out (`other_settings`). None if there are no trade-offs. Raises `RecordError` for a damaged shipped file."""
    shipped = shipped_tradeoff()
    parts = own if shipped is None else (shipped, *own)
    return joined(parts) if parts else None


def other_settings(*own: Tradeoff) -> tuple[str, ...]:
    """Return a line for each data set and model of the trade-offs `own` (from calibrations) with another federated
    setting than the shipped trade-off."""
    shipped = shipped_tradeoff()
    settings = {} if shipped is None else shipped.settings
    return tuple(
        f"{key}: shipped families are left out; they have {settings[key]}, and the run has {setting}"
        for each in own
        for key, setting in each.settings.items()
        if settings.get(key, setting) != setting
    )
