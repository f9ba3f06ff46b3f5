"""Rows: what transforms share to treat each client or example apart, whatever leads its tensors."""

from collections.abc import Mapping

import torch
from torch import Tensor


def rows(tensor: Tensor, lead: int) -> Tensor:
    """(*lead, *shape) → (*lead, coordinate): one vector a row; a scalar parameter is one coordinate."""
    return tensor.reshape(*tensor.shape[:lead], -1)


def joined(tensors: Mapping[str, Tensor], lead: int) -> Tensor:
    """All tensors of a row end to end, in the mapping's order: (*lead, coordinate)."""
    return torch.cat([rows(tensor, lead) for tensor in tensors.values()], dim=-1)


def parted(vectors: Tensor, tensors: Mapping[str, Tensor], lead: int) -> dict[str, Tensor]:
    """The inverse of `joined`: (*lead, coordinate) cut into the shapes of `tensors`."""
    sizes = [rows(tensor, lead).shape[-1] for tensor in tensors.values()]
    parts = torch.split(vectors, sizes, dim=-1)
    return {
        name: part.reshape(tensor.shape) for (name, tensor), part in zip(tensors.items(), parts, strict=True)
    }


def spread(factor: Tensor, tensor: Tensor) -> Tensor:
    """One number a row, (*lead), shaped to multiply (*lead, *shape), in the tensor's dtype."""
    ones = (1,) * (tensor.dim() - factor.dim())
    return factor.reshape((*factor.shape, *ones)).to(tensor.dtype)
