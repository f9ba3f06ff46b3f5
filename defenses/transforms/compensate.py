"""Compensation: the server removes the noise part of a mean update, identified by random-matrix theory."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.defenses.base import Context, Tensors, Transform
from bench.defenses.ranges import at_least
from bench.rows import flattened, unflattened
from bench.spectrum import as_matrix, without_noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Compensate(Transform):
    """Remove noise from the mean update at the server: only directions with more or less variance than pure noise are
    kept. The update's coordinates, padded with zeros, are the rows of a matrix C (v × w); the result is C·P·Pᵀ
    (Risk-balanced §5). P holds the eigenvectors of CᵀC/v with eigenvalues outside the noise's Marchenko–Pastur interval
    σ̂²(1 ± √(w/v))²."""

    variance: float
    """σ̂², the noise variance per coordinate of the mean, assumed equal for all coordinates."""
    quotient: float
    """Q = v/w, the ratio of rows to columns."""
    tolerance: float
    """Share by which each edge of the interval moves outward, since noise on slices differs between coordinates."""

    def __post_init__(self) -> None:
        at_least("variance", self.variance)
        at_least("quotient", self.quotient, 1)
        if not 0 <= self.tolerance < 1:
            raise ValueError(f"tolerance must lie in [0, 1), got {self.tolerance}")

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        vectors = flattened(tensors, context.lead)
        if not bool(torch.isfinite(vectors).all()):
            return dict(tensors)  # the training reports that it diverged
        kept = without_noise(vectors, variance=self.variance, quotient=self.quotient, tolerance=self.tolerance)
        return unflattened(kept, tensors, context.lead)

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor]:
        """Simulate the transform on an attacker's candidate updates `tensors`, with the directions P that the attacked
        reading `observed` shows: C·P·Pᵀ, with the candidate as a matrix C. The rows of the reading, as a matrix, lie in
        the span of P, so P is computed from these rows. The last row is left out for P, because it was cut off with the
        padding. `context`: place in the training."""
        c, seen = (as_matrix(flattened(each, context.lead), self.quotient) for each in (tensors, observed))
        shown = seen[..., :-1, :].detach()
        _, values, v = torch.linalg.svd(shown.where(shown.isfinite(), 0.0), full_matrices=False)
        floor = values[..., :1] * torch.finfo(values.dtype).eps * max(shown.shape[-2:])
        p = v * (values > floor)[..., :, None].to(v)
        size = flattened(tensors, context.lead).shape[-1]
        return unflattened(((c @ p.mT) @ p).flatten(-2)[..., :size], tensors, context.lead)
