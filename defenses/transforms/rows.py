"""Helper functions for rows, for defenses: a row holds a client's or an example's tensors, behind any number of leading
axes."""

import torch
from torch import Tensor

from bench.defenses.base import Context, Scaling, Tensors
from bench.rows import rows


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
    """Apply a transform in its fast form, factors and noise: multiply each tensor by its factor, then add normal noise
    with the deviation in `scaling`. Return tensors with the same names and shapes.

    - `tensors`: name → (*lead, *shape) with leading axes *lead.
    - `scaling`: the factors and the deviation.
    - `context`: gives the random draws; none are made for deviation 0."""
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
