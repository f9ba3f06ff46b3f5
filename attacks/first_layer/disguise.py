"""Disguise of chosen first-layer weights: noise in directions in which public examples hardly vary."""

import numpy as np
import torch
from torch import Tensor

_FLOOR = 1e-6  # of the mean variance: directions with less have equal noise


def unseen(
    weight: Tensor, bias: Tensor, honest: Tensor, known: Tensor, share: float, draw: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Disguise the first layer that a server has chosen for an attack: add noise to its rows (neurons), so that rows no
    longer look alike and have the usual norm. Noise is large in directions in which public examples hardly vary, so
    that almost the same examples open a row (output above 0) as before. Return the weight (row, input) and the bias
    (row,).

    - `weight` (row, input), `bias` (row,): the chosen layer without noise.
    - `honest` (row, input): the layer before the server's choice; it gives the root mean square norm of a row.
    - `known` (example, input): public examples.
    - `share` in [0, 1): share of noise in a row's squared norm.
    - `draw`: source of the noise."""
    size = honest.square().sum(1).mean().sqrt()
    variances, axes = torch.linalg.eigh(torch.cov(known.T))
    damped = (variances.clamp_min(0) + _FLOOR * variances.mean()).rsqrt()
    noise = torch.from_numpy(draw.standard_normal(tuple(weight.shape))) * damped @ axes.T
    noise *= share**0.5 * size / noise.norm(dim=1, keepdim=True)
    factor = (1 - share) ** 0.5 * size / weight.norm(dim=1, keepdim=True)
    return factor * weight + noise, factor[:, 0] * bias - noise @ known.mean(0)
