"""Helper functions for rows: a row holds a client's or an example's tensors, behind any number of leading axes."""

import torch
from torch import Tensor

from bench.defenses.base import Context, Scaling, Tensors


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


def broadcast(factor: Tensor, tensor: Tensor) -> Tensor:
    """Reshape `factor`, a number per row (a client or an example), to multiply `tensor` (*lead, *shape), and convert it
    to the tensor's dtype. `factor` is (*lead), with the tensor's leading axes *lead."""
    ones = (1,) * (tensor.dim() - factor.dim())
    return factor.reshape((*factor.shape, *ones)).to(tensor.dtype)


def norms(tensors: Tensors, lead: int) -> dict[str, Tensor]:
    """Return the Euclidean norm of each tensor in each row (a client or an example), name → (*lead). `tensors`, name →
    (*lead, *shape), have `lead` leading axes *lead."""
    return {name: torch.linalg.vector_norm(rows(tensor, lead), dim=-1) for name, tensor in tensors.items()}


def joint_norm(norms: Tensors) -> Tensor:
    """Return the Euclidean norm over all tensors of each row (a client or an example): (*lead). `norms` are the norms
    of the single tensors, name → (*lead), with the leading axes *lead."""
    whole: Tensor = torch.linalg.vector_norm(torch.stack(tuple(norms.values())), dim=0)
    return whole


def rescaled(tensors: Tensors, scaling: Scaling, context: Context) -> dict[str, Tensor]:
    """Apply `scaling` to `tensors`, name → (*lead, *shape) with leading axes *lead: multiply each tensor by its factor,
    then add normal noise with the deviation in `scaling`. `context` gives the random draws; none are made for deviation
    0."""
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
