"""R-GAP's recursion: each layer's input by least squares from its output and its weights' gradient, last layer first.

For a layer z = W x + b with k = ∂loss/∂z, two sets of equations are linear in x: W x = z - b (weight constraints), and
K x = ∂loss/∂W (gradient constraints), with K from k. The layer before has z' = σ⁻¹(x) and k' = σ'(z') ∘ Wᵀk."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import brentq
from torch import Tensor

from bench.attacks.chain.links import Activation, Affine, Link, Scaled
from bench.trip import Tensors

_SIZES = 2000  # trial lengths of k at a last layer without bias
_CUT = 1e-9  # of the largest: smaller singular values of a layer's equations count as 0
_ITERATIONS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """An example from the recursion, with each layer's rank."""

    x: Tensor
    """The example, flat (value,)."""
    ranks: tuple[tuple[int, int], ...]
    """For each affine layer but the last, last layer first: rank of its equations, and number of its input values."""
    residual: float
    """Largest squared residual of a layer's equations, as a share of their right side's square."""


def solve(chain: Sequence[Link], gradient: Tensors, label: int) -> Solved | None:
    """Compute the example behind a gradient. Return None if a layer's equations are not finite, or the last layer's
    gradient is zero.

    - `chain`: the model's links, from the input to the logits (`links`).
    - `gradient`: the gradient of the cross entropy, name → (*shape), of the weights and biases.
    - `label`: the example's class number; used only if the last layer has no bias."""
    last = chain[-1]
    assert isinstance(last, Affine)
    z, k = _head(last, gradient, label)
    ranks, residual = [], 0.0
    known = torch.ones_like(z, dtype=torch.bool)
    for link in reversed(chain[:-1]):
        if isinstance(link, Activation):
            z, slope, known = link.inverse(z)
            k = k * slope
        elif isinstance(link, Scaled):
            z, k = (z - link.offset) / link.factor, k * link.factor
        else:
            step = _layer(link, gradient, z, k, known)
            if step is None:
                return None
            z, k, rank, share = step
            known = torch.ones_like(z, dtype=torch.bool)
            ranks.append((rank, link.inputs))
            residual = max(residual, share)
    if not z.isfinite().all():
        return None
    return Solved(x=z, ranks=tuple(ranks), residual=residual)


def _head(last: Affine, gradient: Tensors, label: int) -> tuple[Tensor, Tensor]:
    """Return the last layer's input x and ∂loss/∂x. The gradient of the weights is k xᵀ, with k = p - y: probabilities
    minus the one-hot label. A bias shows k. Without a bias, k has the direction of the gradient's first left singular
    vector, and its length solves softmax(W x) - y = k."""
    table = _of(gradient, last, "weight").reshape(len(last.kernel), -1)
    if last.bias is not None:
        k = _of(gradient, last, "bias")
    else:
        k = _of_length(last.kernel, table, label)
    return table.T @ k / k.square().sum(), last.kernel.T @ k


def _of_length(kernel: Tensor, table: Tensor, label: int) -> Tensor:
    direction = torch.linalg.svd(table, full_matrices=False).U[:, 0]
    direction = -direction * torch.sign(direction[label])  # p - 1 < 0 at the label
    logits = kernel @ (table.T @ direction)  # of a k with length 1; a length s gives logits / s

    def off(size: float) -> Tensor:
        gap: Tensor = (logits / size).softmax(0) - size * direction
        gap[label] -= 1
        return gap

    largest = 1 / max(float(-direction[label]), 1e-300)
    sizes = torch.logspace(-12, 0, _SIZES, dtype=torch.float64) * largest
    at_label = [float(off(float(size))[label]) for size in sizes]
    found = [
        brentq(lambda size: float(off(size)[label]), float(sizes[at]), float(sizes[at + 1]), xtol=1e-300, rtol=1e-15)
        for at in range(_SIZES - 1)
        if at_label[at] * at_label[at + 1] < 0
    ]
    best: float = min(found or sizes.tolist(), key=lambda size: float(off(size).square().sum()))
    k: Tensor = best * direction
    return k


def _layer(
    layer: Affine, gradient: Tensors, z: Tensor, k: Tensor, known: Tensor
) -> tuple[Tensor, Tensor, int, float] | None:
    """Return the layer's input x, ∂loss/∂x, the rank of the equations, and their residual's share, from the output `z`,
    `k` = ∂loss/∂z and the positions where z is `known`. Return None if the equations are not finite."""
    if layer.connected and layer.bias is not None:
        k = _of(gradient, layer, "bias")
    weight = layer.matrix()
    by_gradient, known_gradient = layer.by_gradient(k, _of(gradient, layer, "weight").reshape(layer.kernel.shape))
    back = weight.T @ k
    left, right = weight[known], (z - layer.offset())[known]
    scale = (float(left.square().sum()) / max(float(by_gradient.square().sum()), 1e-300)) ** 0.5 if len(left) else 1.0
    left = torch.cat([left, scale * by_gradient])
    right = torch.cat([right, scale * known_gradient])
    if not (left.isfinite().all() and right.isfinite().all()):
        return None
    x, rank = least_squares(left, right)
    share = float((left @ x - right).square().sum() / right.square().sum().clamp_min(1e-300))
    return x, back, rank, share


def least_squares(left: Tensor, right: Tensor) -> tuple[Tensor, int]:
    """Return the shortest x (unknown,) of least |`left` x - `right`|, and the rank of `left` (equation, unknown) with
    `right` (equation,). An orthogonal triangular factor solves a well-conditioned `left` in a third of the time of
    singular values, which solve the rest."""
    count = left.shape[1]
    factor = torch.linalg.qr(torch.cat([left, right[:, None]], 1), mode="r").R
    triangle, rotated = factor[:count, :count], factor[:count, count:]
    if len(triangle) == count and _well_conditioned(triangle):
        return torch.linalg.solve_triangular(triangle, rotated, upper=True)[:, 0], count
    solution = torch.linalg.lstsq(triangle, rotated, rcond=_CUT, driver="gelsd")  # gelsy: other bits in each run
    return solution.solution[:, 0], int(solution.rank)


def _well_conditioned(triangle: Tensor) -> bool:
    """Return whether the smallest singular value exceeds `_CUT` times the root of the sum of all squares, by inverse
    iterations."""
    vector = torch.ones(len(triangle), 1, dtype=triangle.dtype)
    growth = 1.0
    for _ in range(_ITERATIONS):
        vector = torch.linalg.solve_triangular(triangle.T, vector / vector.norm(), upper=False)
        vector = torch.linalg.solve_triangular(triangle, vector, upper=True)
        growth = float(vector.norm())  # tends to the smallest singular value's square, inverted
        if not growth < float("inf"):
            return False
    return float(growth**-0.5) > _CUT * float(triangle.norm())


def _of(gradient: Tensors, layer: Affine, name: str) -> Tensor:
    return gradient[f"{layer.prefix}{name}"].double().cpu()
