"""Compensation: the part of a mean update that random-matrix theory takes for noise is removed."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.defenses.base import Context, Tensors, Transform
from bench.defenses.ranges import at_least
from bench.defenses.transforms.rows import flattened, unflattened


@dataclass(frozen=True, slots=True, kw_only=True)
class Compensate(Transform):
    """Of the mean as a matrix C (v × w, rows end to end, padded with zeros), keep C·P·Pᵀ: P are the eigenvectors of
    CᵀC/v whose eigenvalues lie outside the Marchenko–Pastur interval σ̂²(1 ± √(w/v))² of the noise (Risk-balanced §5).

    `variance` is σ̂², of the noise on a coordinate of the mean, the same for all; `quotient` Q = v/w.
    Noise on slices differs between coordinates: `tolerance` widens the interval by that share of each edge.
    Eigenvalues below the interval count as data.
    """

    variance: float
    quotient: float
    tolerance: float

    def __post_init__(self) -> None:
        at_least("variance", self.variance)
        at_least("quotient", self.quotient, 1)
        if not 0 <= self.tolerance < 1:
            raise ValueError(f"tolerance must lie in [0, 1), got {self.tolerance}")

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        vectors = flattened(tensors, context.lead)
        size = vectors.shape[-1]
        if not bool(torch.isfinite(vectors).all()):
            return dict(tensors)  # the training reports that it diverged
        width, height = self._size(size)
        c = self._matrix(vectors, width, height)
        values, directions = torch.linalg.eigh(c.mT @ c / height)
        noise = directions * self._is_noise(values, width / height).to(c)[..., None, :]
        # C - C·N·Nᵀ with the noise's directions N: without any, C bit for bit
        kept = (c - c @ noise @ noise.mT).flatten(-2)[..., :size]
        return unflattened(kept, tensors, context.lead)

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor]:
        """The candidate in the directions that the reading shows: C·P·Pᵀ lies in the space of P.

        Its last row is cut off with the padding, and tells nothing of P.
        """
        width, height = self._size(flattened(tensors, context.lead).shape[-1])
        c, seen = (self._matrix(flattened(each, context.lead), width, height) for each in (tensors, observed))
        shown = seen[..., :-1, :].detach()
        _, values, v = torch.linalg.svd(shown.where(shown.isfinite(), 0.0), full_matrices=False)
        floor = values[..., :1] * torch.finfo(values.dtype).eps * max(shown.shape[-2:])
        p = v * (values > floor)[..., :, None].to(v)
        size = flattened(tensors, context.lead).shape[-1]
        return unflattened(((c @ p.mT) @ p).flatten(-2)[..., :size], tensors, context.lead)

    def _size(self, size: int) -> tuple[int, int]:
        """Columns w and rows v of the matrix of so many coordinates."""
        width = max(1, int(math.sqrt(size / self.quotient)))
        return width, -(-size // width)

    def _matrix(self, vectors: Tensor, width: int, height: int) -> Tensor:
        padded: Tensor = torch.nn.functional.pad(vectors, (0, height * width - vectors.shape[-1]))
        matrix: Tensor = padded.unflatten(-1, (height, width))
        return matrix

    def _is_noise(self, values: Tensor, ratio: float) -> Tensor:
        low = self.variance * (1 - math.sqrt(ratio)) ** 2 * (1 - self.tolerance)
        high = self.variance * (1 + math.sqrt(ratio)) ** 2 * (1 + self.tolerance)
        return (values >= low) & (values <= high)
