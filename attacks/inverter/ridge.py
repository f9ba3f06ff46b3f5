"""Kernel ridge regression in closed form.

The prediction for features z is f(z) = b + k(z) A, with A = (K + λ m I)⁻¹ (T - b). K is the kernel matrix, T the
targets, b their mean, m the mean of K's diagonal, so λ has no unit. A row is an example: its features and targets."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

WORST = 1e6  # λ at which only the mean remains


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """Kernel of the regression: similarity of two feature vectors z and z'. With `width` 0, the kernel is linear, zᵀz'.
    Otherwise it is Gaussian, exp(-width · ‖z - z'‖² / median ‖z - z'‖²), with the median over pairs of fitted examples.
    """

    width: float = 0.0
    """Factor on the squared distance in the Gaussian kernel, without unit; 0 gives the linear kernel."""

    def __call__(self, products: Tensor, left: Tensor, right: Tensor, median: float) -> Tensor:
        """Return kernel values (left, right). `products` (left, right) are the scalar products zᵀz', `left` (left,) and
        `right` (right,) the squared norms, and `median` is the median squared distance."""
        if self.width == 0:
            return products
        distances = (left[:, None] + right[None] - 2 * products).clamp_min_(0)
        return distances.mul_(-self.width / median).exp_()

    def __str__(self) -> str:
        return f"rbf({self.width:g})" if self.width else "linear"


def median_distance(products: Tensor) -> float:
    """Return the unit of distance for a Gaussian kernel: the median squared distance ‖z - z'‖² between examples'
    feature vectors, over pairs from about 300 examples; never 0. `products` (example, example) are the scalar products
    zᵀz' for all pairs."""
    every = max(1, len(products) // 300)
    few = products[::every, ::every]
    norms = few.diagonal()
    apart = norms[:, None] + norms[None] - 2 * few
    pairs = apart[torch.triu(torch.ones_like(apart, dtype=torch.bool), 1)]
    return float(pairs.median().clamp_min(torch.finfo(products.dtype).tiny)) if len(pairs) else 1.0


def factorise(kernel: Tensor, ridge: float) -> tuple[Tensor, float]:
    """Factorise the matrix of a kernel ridge regression, K + λ m I with the mean m on K's diagonal, in preparation for
    its solution. Return the Cholesky factor and the λ actually used.

    - `kernel` (example, example): K, for all pairs among the fitted examples.
    - `ridge`: first λ, multiplied by 10 until the matrix is positive definite."""
    mean = kernel.diagonal().mean().clamp_min(torch.finfo(kernel.dtype).tiny)
    while True:
        shifted = kernel.clone()
        shifted.diagonal().add_(ridge * mean)
        factor, failed = torch.linalg.cholesky_ex(shifted)
        if not failed or ridge >= WORST:
            return factor, ridge
        ridge *= 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Ridge:
    """A fitted kernel ridge regression, from a gradient's features z to the examples behind it: f(z) = b + k(z) A, with
    the vector k(z) of kernels between z and the fitted rows. A row is a simulated reading: its features and its targets
    (input values, class counts)."""

    kernel: Kernel
    """Kernel of the regression, linear or Gaussian."""
    ridge: float
    """λ, the regularisation, as a share of the kernel matrix's mean diagonal."""
    features: Tensor
    """Features of the fitted rows (row, feature)."""
    norms: Tensor
    """Squared norms of `features` (row,)."""
    median: float
    """Median squared distance between `features`; the Gaussian kernel's unit."""
    coefficients: Tensor
    """Matrix A (fitted row, target)."""
    offset: Tensor
    """Mean b of the targets (target,)."""

    def __call__(self, features: Tensor) -> Tensor:
        """Predict targets (row, target) for `features` (row, feature)."""
        return self.from_products(features @ self.features.T, features.square().sum(1))

    def from_products(self, products: Tensor, norms: Tensor) -> Tensor:
        """Predict the targets (row, target) of new rows (examples) from scalar products of their features.

        - `products` (row, fitted row): scalar products of new and fitted features.
        - `norms` (row,): squared norms of the new features."""
        return self.offset + self.kernel(products, norms, self.norms, self.median) @ self.coefficients


def path(
    features: Tensor, targets: Tensor, kernel: Kernel, ridges: Iterable[float], products: Tensor | None = None
) -> Iterator[Ridge]:
    """Fit a ridge regression for each strength of regularisation λ in `ridges`, so that a caller can choose the best;
    yield the regressions in this order.

    - `features` (row, feature), `targets` (row, target): the data to fit.
    - `kernel`: kernel of every regression.
    - `products` (row, row): the features' scalar products; None computes them."""
    if products is None:
        products = features @ features.T
    norms, median, offset = products.diagonal().clone(), median_distance(products), targets.mean(0)
    between = kernel(products, norms, norms, median)
    for ridge in ridges:
        factor, stable = factorise(between, ridge)
        yield Ridge(
            kernel=kernel,
            ridge=stable,
            features=features,
            norms=norms,
            median=median,
            offset=offset,
            coefficients=torch.cholesky_solve(targets - offset, factor),
        )
