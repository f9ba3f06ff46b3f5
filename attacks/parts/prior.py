"""Priors on inputs, one figure per reading, added to the distance."""

import torch
from torch import Tensor

_SOFT = 0.01  # grey levels below which a difference of neighbours counts as none: the root is smooth there


def total_variation(x: Tensor) -> Tensor:
    """Mean absolute difference of neighbours, both ways: (reading, picture, channel, h, w) → (reading,).

    Geiping et al. 2020, §4: anisotropic, mean over the pixels.
    """
    across, down = (d.abs().flatten(1).mean(1) for d in _differences(x))
    return across + down


def squared(x: Tensor) -> Tensor:
    """Mean square, (reading,)."""
    return (x * x).flatten(1).mean(1)


def absolute(x: Tensor) -> Tensor:
    """Mean magnitude, (reading,)."""
    return x.abs().flatten(1).mean(1)


def outside(x: Tensor, low: float, high: float) -> Tensor:
    """Summed squares of what lies outside the data's range, (reading,)."""
    return ((low - x).clamp_min(0) ** 2 + (x - high).clamp_min(0) ** 2).flatten(1).sum(1)


def edges(x: Tensor, scale: float) -> Tensor:
    """-log density of a picture whose differences of neighbours follow Laplace's law of this scale, up to a
    constant: Σ |∂x| / scale, smoothed at zero; (reading, picture, channel, h, w) → (reading,)."""
    parts = [((d * d + _SOFT**2).sqrt() - _SOFT).flatten(1).sum(1) for d in _differences(x)]
    return (parts[0] + parts[1]) / scale


def edge_scale(public: Tensor) -> float:
    """The scale of `edges` that public pictures (example, channel, h, w) make most likely: mean |∂x|."""
    gaps = torch.cat([d.flatten() for d in _differences(public)])
    return max(float(gaps.abs().mean()), 1e-3)


def _differences(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of neighbours across and down, (..., height, width)."""
    return x[..., :, 1:] - x[..., :, :-1], x[..., 1:, :] - x[..., :-1, :]
