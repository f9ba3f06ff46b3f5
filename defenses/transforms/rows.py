"""Rows: what transforms share to treat each client or example apart, whatever leads its tensors."""

from collections.abc import Mapping

import torch
from torch import Tensor

from bench.defenses.base import Context, Scaled


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


def norms(tensors: Mapping[str, Tensor], lead: int) -> dict[str, Tensor]:
    """The norm of each tensor of each row: name → (*lead)."""
    return {name: torch.linalg.vector_norm(rows(tensor, lead), dim=-1) for name, tensor in tensors.items()}


def joint(norms: Mapping[str, Tensor]) -> Tensor:
    """The norm of all tensors of a row together, (*lead), from each one's.

    The norm of the norms: unlike a root of a sum, its derivative at zero is finite.
    """
    whole: Tensor = torch.linalg.vector_norm(torch.stack(tuple(norms.values())), dim=0)
    return whole


def scaled(tensors: Mapping[str, Tensor], told: Scaled, context: Context) -> dict[str, Tensor]:
    """The tensors after what `told` says: factors first, then noise, which is drawn where there is some."""
    found = {
        name: tensor * spread(told.factors[name], tensor) if name in told.factors else tensor
        for name, tensor in tensors.items()
    }
    if isinstance(told.deviation, float) and told.deviation == 0:
        return found
    return {name: _noised(name, tensor, told.deviation, context) for name, tensor in found.items()}


def _noised(name: str, tensor: Tensor, deviation: Tensor | float, context: Context) -> Tensor:
    size = deviation if isinstance(deviation, float) else spread(deviation, tensor)
    return tensor + size * context.draws.normal(name, tensor)
