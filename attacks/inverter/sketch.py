"""Turn gradients into vectors of bounded length."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from bench.rng import Key
from bench.rows import rows

MOST = 16384  # values kept of a gradient; longer gradients are hashed


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """Random map that shortens a gradient to a vector with a bounded number of entries, so that a regression on many
    gradients fits into memory. The coordinates of each tensor are hashed into buckets, and summed with random signs; on
    average, this keeps scalar products (Charikar et al. 2002). Short gradients are kept as they are."""

    sizes: tuple[int, ...]
    """Number of vector entries for each tensor."""
    buckets: tuple[tuple[Tensor, Tensor] | None, ...]
    """(bucket, sign) of each coordinate for each tensor; None if the tensor's coordinates are kept."""

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]], key: Key, most: int = MOST) -> "Sketch":
        """Build the random map for a model's gradients. Gradients with more than `most` values shrink to about `most`;
        shorter gradients are not changed.

        - `shapes`: shape of each parameter, name → (*shape).
        - `key`: draws the hash's buckets and signs."""
        counts = [torch.Size(shape).numel() for shape in shapes.values()]
        share = min(1.0, most / sum(counts))
        sizes, buckets = [], list[tuple[Tensor, Tensor] | None]()
        for name, count in zip(shapes, counts, strict=True):
            size = count if share == 1 or count <= 64 else max(64, int(share * count))
            random = key.generator("sketch", name)
            sizes.append(size)
            buckets.append(
                None
                if size == count
                else (
                    torch.from_numpy(random.integers(size, size=count)),
                    torch.from_numpy(2.0 * random.integers(2, size=count) - 1),
                )
            )
        return cls(sizes=tuple(sizes), buckets=tuple(buckets))

    @property
    def slices(self) -> tuple[slice, ...]:
        """Range of each parameter tensor in the shortened vector, in the order of the tensors."""
        ends = torch.tensor((0, *self.sizes)).cumsum(0).tolist()
        return tuple(slice(*pair) for pair in pairwise(ends))

    def __call__(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """Turn gradients, name → (row, *shape), into vectors (row, value)."""
        parts = []
        for value, size, bucket in zip(gradients.values(), self.sizes, self.buckets, strict=True):
            flat = rows(value, 1)
            if bucket is not None:
                into, sign = bucket
                flat = flat.new_zeros(len(flat), size).index_add_(1, into.to(flat.device), flat * sign.to(flat))
            parts.append(flat)
        return torch.cat(parts, 1)
