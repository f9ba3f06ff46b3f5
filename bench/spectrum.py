"""The noise part of an update by random-matrix theory: eigenvalues in an interval (Risk-balanced §5)."""

import math

import torch
from torch import Tensor


def as_matrix(vectors: Tensor, quotient: float) -> Tensor:
    """Arrange the coordinates of updates, padded with zeros, as the rows of a matrix: (*lead, coordinate) → (*lead, v,
    w), with v/w about `quotient` ≥ 1. `vectors`: the updates."""
    size = vectors.shape[-1]
    width = max(1, int(math.sqrt(size / quotient)))
    height = -(-size // width)
    padded: Tensor = torch.nn.functional.pad(vectors, (0, height * width - size))
    matrix: Tensor = padded.unflatten(-1, (height, width))
    return matrix


def without_noise(vectors: Tensor, *, variance: float, quotient: float, tolerance: float) -> Tensor:
    """Remove the directions that have the variance of pure noise: (*lead, coordinate) → the same shape. An update as a
    matrix C (v × w) becomes C·P·Pᵀ; P holds the eigenvectors of CᵀC/v with eigenvalues outside the interval
    σ̂²(1 ± √(w/v))² (Risk-balanced §5). An update without such directions stays as it is, bit for bit.

    - `vectors`: finite updates.
    - `variance`: σ̂², the noise's variance per coordinate.
    - `quotient`: Q = v/w.
    - `tolerance` in [0, 1): share by which each edge of the interval moves outward."""
    c = as_matrix(vectors, quotient)
    height, width = c.shape[-2:]
    values, directions = torch.linalg.eigh(c.mT @ c / height)
    edge = math.sqrt(width / height)
    low = variance * (1 - edge) ** 2 * (1 - tolerance)
    high = variance * (1 + edge) ** 2 * (1 + tolerance)
    noise = directions * ((values >= low) & (values <= high)).to(c)[..., None, :]
    # C - C·N·Nᵀ with the noise's directions N: without such directions, C bit for bit
    kept: Tensor = (c - c @ noise @ noise.mT).flatten(-2)[..., : vectors.shape[-1]]
    return kept
