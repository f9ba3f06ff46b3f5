"""Low rank: keep the top singular directions of each parameter, taken as a matrix (out, rest)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bench.defenses.base import Context, Shown, State, Tensors, Transform


@dataclass(frozen=True, slots=True, kw_only=True)
class TopDirections(Transform):
    """Compress each parameter's tensor to low rank: the tensor, as a matrix (out, rest), is replaced by the nearest
    matrix with rank `rank`. Parameters with fewer than two axes (biases) stay unchanged. Non-finite matrices also stay
    unchanged: a client that diverged remains visible and does not affect other clients."""

    reads: ClassVar[Shown] = "directions"

    share: float = 0.1
    """Rank as a share of min(out, rest), at least 1; used if `rank` is None."""
    rank: int | None = None
    """Rank of the output; None: given by `share`."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share of singular directions kept must lie in (0, 1], got {self.share}")
        if self.rank is not None and self.rank < 1:
            raise ValueError(f"rank must be at least 1, got {self.rank}")

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        return {name: self._truncated(tensor, context.lead) for name, tensor in tensors.items()}

    def expected(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        """Simulate the transform on an attacker's candidate gradients `tensors`, in a form with a useful derivative;
        return the result and the unchanged `state`. For a candidate G, the result is UUᵀG + GVVᵀ - UUᵀGVVᵀ, with the
        column and row spaces U, V of its low-rank matrix held constant. This equals the low-rank matrix; its derivative
        is the projection on the tangent space of matrices with the same rank. `context`: place in the training."""
        return {n: self._projected(tensor, tensor, context.lead) for n, tensor in tensors.items()}, state

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor]:
        """Simulate the transform on an attacker's candidate gradients `tensors`, with the column and row spaces U, V
        that the attacked reading `observed` shows: UUᵀG + GVVᵀ - UUᵀGVVᵀ for a candidate G. Only the part of G outside
        both spaces is dropped. For the true gradient G and the reading R, UUᵀG = R and GVVᵀ = R, so the result is R.
        `context`: place in the training."""
        return {name: self._projected(tensor, observed[name], context.lead) for name, tensor in tensors.items()}

    def _kept(self, matrix: Tensor) -> int:
        least = min(matrix.shape[-2:])
        return min(least, max(1, round(self.share * least)) if self.rank is None else self.rank)

    def _truncated(self, tensor: Tensor, lead: int) -> Tensor:
        if tensor.dim() - lead < 2:
            return tensor.clone()
        matrix = _matrices(tensor, tensor.shape[lead:])
        finite = matrix.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
        u, values, v = torch.linalg.svd(matrix.where(finite, matrix.new_zeros(())), full_matrices=False)
        kept = self._kept(matrix)
        low: Tensor = (u[..., :kept] * values[..., None, :kept]) @ v[..., :kept, :]
        return low.where(finite, matrix).reshape(tensor.shape)

    def _projected(self, tensor: Tensor, observed: Tensor, lead: int) -> Tensor:
        shape = tensor.shape[lead:]
        if len(shape) < 2:
            return tensor
        matrix, seen = _matrices(tensor, shape), _matrices(observed.detach(), shape)
        finite = seen.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
        seen = seen.where(finite, seen.new_zeros(()))  # a diverged reading must not stop other readings
        columns, rows = _spaces(seen, self._kept(matrix))
        left = columns @ (columns.mT @ matrix)
        rest = matrix - left
        projected: Tensor = (left + (rest @ rows.mT) @ rows).reshape(tensor.shape)
        return projected


def _spaces(matrix: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """Return the first `kept` singular directions of `matrix` (..., out, rest): columns (..., out, kept) and rows (...,
    kept, rest). Eigenvectors of the smaller Gram matrix in double precision are up to four times faster than a full
    decomposition. Directions below rounding (of `matrix`, or of the squares) are returned as zero."""
    exact = matrix.double()
    wide = matrix.shape[-2] <= matrix.shape[-1]
    exact = exact if wide else exact.mT
    squares, vectors = torch.linalg.eigh(exact @ exact.mT)
    values = squares[..., -kept:].clamp_min(0).sqrt()
    size = max(matrix.shape[-2:])
    rounding = max(torch.finfo(matrix.dtype).eps * size, (torch.finfo(torch.float64).eps * size) ** 0.5)
    significant = values > rounding * values[..., -1:]
    near = vectors[..., -kept:] * significant[..., None, :]
    far = (exact.mT @ near) / values.where(significant, 1.0)[..., None, :]
    columns, rows = (near, far.mT) if wide else (far, near.mT)
    return columns.to(matrix), rows.to(matrix)


def _matrices(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    return tensor.reshape(*tensor.shape[: tensor.dim() - len(shape)], shape[0], -1)
