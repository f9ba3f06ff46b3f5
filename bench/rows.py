"""Rows as vectors: a row holds the tensors of a client, an example or a reading, behind any number of leading axes."""

import torch
from torch import Tensor

from bench.trip import Tensors


def rows(tensor: Tensor, lead: int) -> Tensor:
    """Flatten each row (a client or an example) of `tensor`: (*lead, *shape) → (*lead, coordinate). `lead` is the
    number of leading axes *lead. A scalar parameter becomes a single coordinate."""
    return tensor.reshape(*tensor.shape[:lead], -1)


def flattened(tensors: Tensors, lead: int) -> Tensor:
    """Concatenate the tensors of each row (a client or an example) into a vector, in mapping order: (*lead,
    coordinate). `tensors`, name → (*lead, *shape), have `lead` leading axes *lead."""
    return torch.cat([rows(tensor, lead) for tensor in tensors.values()], dim=-1)


def unflattened(vectors: Tensor, tensors: Tensors, lead: int) -> dict[str, Tensor]:
    """Split `vectors` (*lead, coordinate) into tensors with the names and shapes in `tensors`, name → (*lead, *shape);
    the inverse of `flattened`. `lead` is the number of leading axes *lead."""
    sizes = [rows(tensor, lead).shape[-1] for tensor in tensors.values()]
    parts = torch.split(vectors, sizes, dim=-1)
    return {name: part.reshape(tensor.shape) for (name, tensor), part in zip(tensors.items(), parts, strict=True)}


def median(values: Tensor) -> Tensor:
    """Return the lower median of each row: (row, value) → (row,); NaN values do not count, a row of NaN gives NaN.
    Replaces torch's `nanmedian` with positions, which CUDA refuses under deterministic algorithms."""
    ordered = values.sort(1).values  # NaN last
    middle = (values.isnan().logical_not().sum(1) - 1).clamp_min(0) // 2
    return ordered.gather(1, middle[:, None])[:, 0]


def kth_smallest(values: Tensor, k: int) -> Tensor:
    """Return the `k`-th smallest of the `values` in each row, counted from 1: (*lead, value) → (*lead, 1). Under
    deterministic algorithms CUDA refuses torch's `kthvalue`; a sort, which takes four times as long, then gives the
    same values."""
    if torch.are_deterministic_algorithms_enabled():
        return values.sort(-1).values[..., k - 1 : k]
    return values.kthvalue(k, dim=-1, keepdim=True).values
