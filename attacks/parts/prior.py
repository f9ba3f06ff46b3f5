"""Priors on pictures, one figure per reading, added to the distance."""

from torch import Tensor


def total_variation(x: Tensor) -> Tensor:
    """Mean absolute difference of neighbours, both ways: (reading, picture, channel, h, w) → (reading,).

    Geiping et al. 2020, §4: anisotropic, mean over the pixels.
    """
    across = (x[..., :, 1:] - x[..., :, :-1]).abs().flatten(1).mean(1)
    down = (x[..., 1:, :] - x[..., :-1, :]).abs().flatten(1).mean(1)
    return across + down


def squared(x: Tensor) -> Tensor:
    """Mean square, (reading,)."""
    return (x * x).flatten(1).mean(1)


def absolute(x: Tensor) -> Tensor:
    """Mean magnitude, (reading,)."""
    return x.abs().flatten(1).mean(1)
