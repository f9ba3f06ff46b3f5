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
    """Estimate of an example's values, for a defense that sends signs: signs show only which values of the example are
    0. A ridge regression, fitted to public examples, predicts the nonzero values from their positions."""

    slope: Tensor
    """Coefficients, (place, value) in float64."""
    offset: Tensor
    """Estimate for an example without nonzero values, (value,)."""

    @classmethod
    def of(cls, reading: Reading, rows: Rows) -> "Shades | None":
        """Fit the estimate to the public examples in `reading`. `rows` holds the first layer, whose inputs are the
        values. Return None if fewer than 5 % of the public values are 0, because positions then tell little."""
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
        """Estimate the values of candidate examples that show only the positions of their nonzero values, as behind a
        sign defense. The estimate is linear, fitted to public examples. Return the estimated examples (ratio, input).

        - `ratios` (ratio, input): candidate examples, quotients of a neuron's weight gradient and bias gradient.
          Estimated values fill the positions above 0; other values are 0."""
        places = (ratios > 0).double()
        return places * (places @ self.slope + self.offset).clamp_min(0)


def filled(ratios: Tensor, shades: Callable[[], Shades | None]) -> Tensor:
    """Replace candidate examples from signs by estimates: a candidate whose nonzero values all have the same magnitude
    shows only positions. Return all candidates (ratio, input).

    - `ratios` (ratio, input): the candidates.
    - `shades`: function that fits the estimate, called only if there is such a candidate; with result None, all
      candidates stay unchanged."""
    size = ratios.abs()
    largest, least = size.amax(1), size.where(size > 0, torch.inf).amin(1)
    flat = (largest - least).abs() <= _EQUAL * largest
    fitted = shades() if bool(flat.any()) else None
    return ratios if fitted is None else torch.where(flat[:, None], fitted.values(ratios), ratios)
