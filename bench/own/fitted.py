"""An unknown number of a recorded training, such as FedProx's μ, by least squares over replays."""

from collections.abc import Callable

import torch
from torch import Tensor

_TRIES = 8
_FIRST = 1e-2  # first change of the number
_DIGITS = 4  # a number with few digits is preferred
_NEAR = 1e-3  # relative change by rounding


def fitted(gap: Callable[[float], Tensor], enough: float) -> float | None:
    """Estimate an unknown setting of a recorded training, such as FedProx's μ: a number x ≥ 0 with which the replayed
    training gives the recorded weights. None if no number does.

    - `gap`: function from x to the difference between replayed and recorded weights, (coordinate,).
    - `enough`: largest accepted length (Euclidean norm) of the difference.

    The search takes Gauss-Newton steps from 0."""
    value, here = 0.0, gap(0.0)
    for _ in range(_TRIES):
        change = max(_FIRST, value / 10)
        slope = (gap(value + change) - here) / change
        square = float(slope @ slope)
        if not square > 0 or not torch.isfinite(slope).all():
            return None
        value = max(0.0, value - float(here @ slope) / square)
        here = gap(value)
        rounded = float(f"{value:.{_DIGITS}g}")
        if abs(rounded - value) <= _NEAR * value and float(gap(rounded).norm()) <= enough:
            return rounded
        if float(here.norm()) <= enough:
            return value
    return None
