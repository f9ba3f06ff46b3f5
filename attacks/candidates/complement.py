"""Scores of candidates for mixed training examples: the part of the first layer's gradient beyond known examples.

A fully connected first layer has the gradient [dW | db] = Σ_n δ_n (x_n, 1)ᵀ. A mixture (x_n, 1) lies in the span of its
originals. After projection away from the known originals, a multiple of the unknown original is left, for any secret
shares and partners."""

from collections.abc import Callable

import torch
from torch import Tensor

from bench.attacks.first_layer.layer import first_layer, table
from bench.trip import Candidates, Reading, Tensors

_ROUNDING = 1e-5  # share of the gradient's norm below which the remainder is rounding


def by_complement(reading: Reading, observed: Tensors, mates: Tensor) -> Callable[[Tensors, Candidates], Tensor] | None:
    """Name the only unknown example behind a reading under mixup: return a function that scores candidates for this
    example, if all other examples are known. The function takes the candidates' gradients (unused) and the candidates;
    it returns a score in [0, 1] per candidate, (row,). The true example scores 1.

    - `reading`: the attacked reading; gives model and weights.
    - `observed`: the attacked gradient, name → (1, *shape); the first layer's part is used.
    - `mates`: inputs of the known examples, (example, *shape).

    The first layer's gradient is spanned by the mixed examples. Without its part in the span of the known examples, a
    multiple of the unknown example is left, for any secret mixing ratio. The score is the squared cosine with the
    candidate, after the same projection. Return None if the known examples explain the whole gradient, or if the model
    has no fully connected first layer."""
    layer = first_layer(reading)
    if layer is None:
        return None

    def with_bias(inputs: Tensor) -> Tensor:
        flat = layer.apply(inputs.flatten(1).double().cpu())
        return torch.cat([flat, flat.new_ones(len(flat), 1)], 1)

    gradient = table(layer, [dict(observed)], 0)
    _, sizes, directions = torch.linalg.svd(with_bias(mates), full_matrices=False)
    span = directions[sizes > _ROUNDING * sizes[0]]
    rest = gradient - gradient @ span.T @ span
    if float(rest.norm()) <= _ROUNDING * float(gradient.norm()):
        return None

    def scores(_: Tensors, candidates: Candidates) -> Tensor:
        inputs = with_bias(candidates.inputs[:, 0])
        inputs = inputs - inputs @ span.T @ span
        unit = inputs / inputs.norm(dim=1, keepdim=True).clamp_min(torch.finfo(inputs.dtype).tiny)
        share: Tensor = (rest @ unit.T).square().sum(0) / rest.square().sum()
        return share

    return scores
