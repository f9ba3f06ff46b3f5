"""Rows: shared helpers for per-client or per-example treatment, with any leading axes."""

import torch
from torch import Tensor

from bench.defenses.base import Context, Scaling, Tensors


def rows(tensor: Tensor, lead: int) -> Tensor:
    """(*lead, *shape) → (*lead, coordinate): a vector per row; a scalar parameter is a single coordinate."""
    return tensor.reshape(*tensor.shape[:lead], -1)


def flattened(tensors: Tensors, lead: int) -> Tensor:
    """A row's tensors end to end, in mapping order: (*lead, coordinate)."""
    return torch.cat([rows(tensor, lead) for tensor in tensors.values()], dim=-1)


def unflattened(vectors: Tensor, tensors: Tensors, lead: int) -> dict[str, Tensor]:
    """Inverse of `flattened`: (*lead, coordinate) cut to the shapes in `tensors`."""
    sizes = [rows(tensor, lead).shape[-1] for tensor in tensors.values()]
    parts = torch.split(vectors, sizes, dim=-1)
    return {name: part.reshape(tensor.shape) for (name, tensor), part in zip(tensors.items(), parts, strict=True)}


def broadcast(factor: Tensor, tensor: Tensor) -> Tensor:
    """A number per row, (*lead), shaped to multiply (*lead, *shape), in the tensor's dtype."""
    ones = (1,) * (tensor.dim() - factor.dim())
    return factor.reshape((*factor.shape, *ones)).to(tensor.dtype)


def norms(tensors: Tensors, lead: int) -> dict[str, Tensor]:
    """Norm of each tensor in each row: name → (*lead)."""
    return {name: torch.linalg.vector_norm(rows(tensor, lead), dim=-1) for name, tensor in tensors.items()}


def joint_norm(norms: Tensors) -> Tensor:
    """Norm over all tensors of a row, (*lead), from the tensors' norms.

    Norm of norms: unlike the root of a sum, its derivative at zero is finite.
    """
    whole: Tensor = torch.linalg.vector_norm(torch.stack(tuple(norms.values())), dim=0)
    return whole


def rescaled(tensors: Tensors, scaling: Scaling, context: Context) -> dict[str, Tensor]:
    """Tensors times their factors, plus noise; draws only for a nonzero deviation."""
    result = {
        name: tensor * broadcast(scaling.factors[name], tensor) if name in scaling.factors else tensor
        for name, tensor in tensors.items()
    }
    deviation = scaling.deviation
    if isinstance(deviation, float) and deviation == 0:
        return result
    return {
        name: tensor
        + (deviation if isinstance(deviation, float) else broadcast(deviation, tensor))
        * context.draws.normal(name, tensor)
        for name, tensor in result.items()
    }
