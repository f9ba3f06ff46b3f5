"""Disguise of chosen first-layer weights: noise in directions in which public examples hardly vary."""

import numpy as np
import torch
from torch import Tensor

_FLOOR = 1e-6  # of the mean variance: directions with less have equal noise


def unseen(
    weight: Tensor, bias: Tensor, honest: Tensor, known: Tensor, share: float, draw: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Add noise to the rows (neurons) of a first layer, as a disguise; return weight (row, input) and bias (row,).
    Almost the same examples as before open a row (output above 0). Each row has the root mean square norm of the
    `honest` rows (row, input).

    - `weight` (row, input), `bias` (row,): the first layer without noise.
    - `known` (example, input): public examples; noise is large where their variance is small.
    - `share` in [0, 1): share of noise in a row's squared norm.
    - `draw`: source of the noise."""
    size = honest.square().sum(1).mean().sqrt()
    variances, axes = torch.linalg.eigh(torch.cov(known.T))
    damped = (variances.clamp_min(0) + _FLOOR * variances.mean()).rsqrt()
    noise = torch.from_numpy(draw.standard_normal(tuple(weight.shape))) * damped @ axes.T
    noise *= share**0.5 * size / noise.norm(dim=1, keepdim=True)
    factor = (1 - share) ** 0.5 * size / weight.norm(dim=1, keepdim=True)
    return factor * weight + noise, factor[:, 0] * bias - noise @ known.mean(0)
