"""Directions outside a gradient's row space."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.attacks.spans.layers import CHUNK
from bench.attacks.spans.remainder import Remainder

EXACT = 1e-9  # mean square of the tokens' shares outside, for a text: certain
_ROUNDING = 1e-7  # of the largest singular value: rounding of float32 sums
_ABOVE = 1.6  # of the median singular value: more than noise
_DRAWN = 256  # random texts that show in which directions vectors differ at all
_NEW = 1e-5  # of a vector's length: above rounding of the row space, if the vector is in it


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """Directions outside the common row space of gradients [dW | db], for layers with a common input. Vectors are the
    layers' inputs h, each followed by 1."""

    paths: tuple[str, ...]
    """Paths to the layers."""
    null: Tensor
    """(value used, outside): directions outside the row space."""
    idle: Tensor
    """(value used, idle): directions in which inputs do not differ."""
    rank: int
    """The row space's rank."""
    exact: bool
    """False if noise fills the row space."""

    @property
    def path(self) -> str:
        """Path to a layer with the common input."""
        return self.paths[0]

    @classmethod
    def of(cls, left: Remainder, paths: tuple[str, ...]) -> "Outside":
        """Find the directions for the layers at `paths`, from gradients in a reading's rest. Random texts show
        the directions in which inputs differ; the positions in unknown texts limit the rank.

        - `left`: the reading's rest, with the model.
        - `paths`: paths to trained layers with a common input."""
        net, gradients = left.net, left.rest
        draws = torch.Generator().manual_seed(0)
        texts = torch.randint(1, net.tokens, (_DRAWN, net.positions), generator=draws).double()
        with torch.no_grad():
            vectors = torch.cat([net.inputs(paths[0], part) for part in texts.split(CHUNK)]).flatten(0, 1)
        if not any(f"{path}.bias" in gradients for path in paths):
            vectors = vectors[:, :-1]  # the gradients say nothing about the constant
        values, directions = torch.linalg.eigh(vectors.mT @ vectors)
        differ = values > 1e-12 * values[-1]
        basis = directions[:, differ]
        rows, fewer = [], 1.0  # how much less is left than was sent: rounding stays
        for path in paths:
            bias = gradients.get(f"{path}.bias")
            weight = gradients[f"{path}.weight"]
            row = torch.cat([weight, (weight.new_zeros(len(weight)) if bias is None else bias)[:, None]], 1)
            rows.append(row[:, : len(basis)] @ basis)
            fewer = max(fewer, float(left.sent[f"{path}.weight"].norm() / weight.norm().clamp_min(1e-300)))
        alike = torch.cat([row / row.norm().clamp_min(1e-300) for row in rows])
        singular, right = _spectrum(alike)
        rounding = _ROUNDING * singular[0] * fewer
        exact = bool(singular[-1] <= rounding)
        if not exact:
            singular, right = _spectrum(torch.cat(rows))  # the noise is the same in all layers
        floor = rounding if exact else _ABOVE * singular.median()
        rank = max(1, min(left.limit, int((singular > floor).sum())))
        null = basis @ right[rank:].mT
        return cls(paths=paths, null=null, idle=directions[:, ~differ], rank=rank, exact=exact)

    def parts(self, inputs: Tensor) -> Tensor:
        """Return each vector's part outside the row space, in units equal to the vector's length: (vector, outside).
        `inputs` (vector, value + 1) are the vectors."""
        return (inputs[:, : len(self.null)] @ self.null) / self.lengths(inputs).sqrt()[:, None]

    def lengths(self, inputs: Tensor) -> Tensor:
        """Return each vector's squared length in the directions in which inputs differ, (...,). `inputs` (..., value +
        1) are the vectors."""
        used = inputs[..., : len(self.null)]
        return used.square().sum(-1) - (used @ self.idle).square().sum(-1)

    def squares(self, inputs: Tensor) -> Tensor:
        """Return the share of each vector's squared length outside the gradient's row space: (...,); 1 if
        the row space holds every vector. `inputs` (..., value + 1) are the vectors."""
        outside = (inputs[..., : len(self.null)] @ self.null).square().sum(-1) / self.lengths(inputs)
        return outside if self.null.shape[1] else outside + 1

    def with_known(self, inputs: Tensor) -> "Outside":
        """Return the directions outside the row space and outside known texts' vectors `inputs` (vector, value + 1).
        The vectors add to a row space with too few directions for all texts."""
        null = self.null @ complement(self.parts(inputs))
        return replace(self, null=null, rank=self.rank + self.null.shape[1] - null.shape[1])

    def single_precision(self) -> "Outside":
        """Return the directions in single precision."""
        return replace(self, null=self.null.float(), idle=self.idle.float())

    def some(self, count: int) -> "Outside":
        """Return `count` random orthogonal directions outside the row space: the share of a vector's squared length in
        them is at most the share in all directions."""
        drawn = torch.randn(self.null.shape[1], count, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        return replace(self, null=self.null @ torch.linalg.qr(drawn).Q) if count < len(drawn) else self


def complement(parts: Tensor) -> Tensor:
    """Return orthogonal directions outside the span by the rows in `parts` (vector, value): (value, direction)."""
    singular, right = _spectrum(parts)
    return right[int((singular > _NEW).sum()) :].mT


def _spectrum(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the singular values (direction,), also zeros, and the right singular vectors (direction, direction)."""
    _, singular, right = torch.linalg.svd(matrix)
    return torch.cat([singular, singular.new_zeros(len(right) - len(singular))]), right
