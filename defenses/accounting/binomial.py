"""ε of binomial noise on a sum of randomly rounded vectors, for a single release.

N    number of coin flips in a coordinate's noise, each with probability 1/2
d    number of coordinates
Δ₁, Δ₂, Δ∞    norms of the sum's change, in units of the grid"""

import math


def epsilon(flips: int, coordinates: int, changes: tuple[float, float, float], delta: float) -> float:
    """Return ε at δ = `delta` for the release of integers with noise Binomial(N, 1/2) on each coordinate (Agarwal et
    al. 2018, theorem 1). Infinite if N is below the theorem's least: N/4 ≥ 23 ln(10d/δ) and N/4 ≥ 2Δ∞.

    - `flips`: N; `coordinates`: d.
    - `changes`: (Δ₁, Δ₂, Δ∞), the change's norms."""
    first, second, largest = changes
    variance = flips / 4
    if variance < max(23 * math.log(10 * coordinates / delta), 2 * largest):
        return math.inf
    b, c, d = 1 / 3, math.sqrt(2) * 7 / 4, 2 / 3  # b_p, c_p, d_p at p = 1/2
    gaussian = second * math.sqrt(2 * math.log(1.25 / delta) / variance)
    log = math.log(10 / delta)
    mixed = (second * c * math.sqrt(log) + first * b) / (variance * (1 - delta / 10))
    tail = 2 / 3 * math.log(1.25 / delta) + d * math.log(20 * coordinates / delta) * log
    return gaussian + mixed + largest * tail / variance


def changes(distance: float, spacing: float, coordinates: int, largest: float, delta: float) -> tuple[float, ...]:
    """Return bounds (Δ₁, Δ₂, Δ∞) on the change of a randomly rounded vector, together valid except with probability
    `delta`, for rounding with common random numbers. A coordinate moved by t grid units changes by ⌊t⌋ or ⌊t⌋ + 1, with
    mean t; both bounds on sums follow from Bernstein's inequality with variance at most min(Σt, d/4). No bound exceeds
    a step per coordinate.

    - `distance`: L2 distance of the two vectors; `spacing`: the grid's unit.
    - `coordinates`: d; `largest`: largest move of a coordinate, in the unit of the vectors."""
    moved = distance / spacing
    total = math.sqrt(coordinates) * moved
    spread = min(total, coordinates / 4)
    excess = math.sqrt(2 * spread * math.log(2 / delta)) + math.log(2 / delta) / 3
    rounded = min(spread + excess, float(coordinates))
    return (min(total + excess, total + coordinates), moved + math.sqrt(rounded), math.ceil(largest / spacing) + 0.0)
