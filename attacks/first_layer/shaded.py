"""Values of an example whose reading shows signs only: a row's signs tell which values of the example are 0."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.attacks.first_layer.rows import Rows, public
from bench.trip import Reading

_EQUAL = 1e-6  # relative difference between the magnitudes of a row of signs
_FEWEST = 0.05  # share of zeros in public examples, below which signs tell little
_RIDGE = 1.0  # weight of the penalty, in examples


@dataclass(frozen=True, slots=True, kw_only=True)
class Shades:
    """Linear estimate of an example from the places of its nonzero values, fitted to public examples."""

    slope: Tensor
    """Coefficients, (place, value) in float64."""
    offset: Tensor
    """Estimate for an example without nonzero values, (value,)."""

    @classmethod
    def of(cls, reading: Reading, rows: Rows) -> "Shades | None":
        """Fit the estimate to the public examples in `reading`, as inputs of the first layer in `rows`. None if few of
        their values are 0."""
        known = public(reading, rows)
        places = (known != 0).double()
        if 1 - places.mean() < _FEWEST:
            return None
        middle, mean = places.mean(0), known.mean(0)
        centred = places - middle
        penalty = _RIDGE * torch.eye(len(middle), dtype=centred.dtype)
        slope = torch.linalg.solve(centred.T @ centred + penalty, centred.T @ (known - mean))
        return cls(slope=slope, offset=mean - middle @ slope)

    def values(self, ratios: Tensor) -> Tensor:
        """Return the estimates for `ratios` (ratio, input) that tell places only; 0 stays 0."""
        places = (ratios > 0).double()
        return places * (places @ self.slope + self.offset).clamp_min(0)


def filled(ratios: Tensor, shades: Callable[[], Shades | None]) -> Tensor:
    """Return `ratios` (ratio, input), with an estimate in place of each ratio whose nonzero values are all equal.
    `shades` fits the estimate; without such a ratio it is not called."""
    size = ratios.abs()
    largest, least = size.amax(1), size.where(size > 0, torch.inf).amin(1)
    flat = (largest - least).abs() <= _EQUAL * largest
    fitted = shades() if bool(flat.any()) else None
    return ratios if fitted is None else torch.where(flat[:, None], fitted.values(ratios), ratios)
