"""Range checks for a transform's numbers: each function returns the number or raises ValueError."""

import math


def at_least(name: str, value: float, least: float = 0) -> float:
    """Return `value` if it is finite and at least `least`; otherwise raise `ValueError` with the parameter's `name`."""
    if not least <= value < math.inf:
        raise ValueError(f"{name} must be at least {least:g} and finite, got {value}")
    return value


def positive(name: str, value: float) -> float:
    """Return `value` if it is finite and above 0; otherwise raise `ValueError` with the parameter's `name`."""
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be above 0 and finite, got {value}")
    return value


def share(name: str, value: float) -> float:
    """Return `value` if it is in [0, 1]; otherwise raise `ValueError` with the parameter's `name`."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must lie in [0, 1], got {value}")
    return value
