"""Turn gradient vectors into regression features, with a scaling learned from public gradients."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bench.rng import Key

Units = Literal["tensor", "coordinate", "direction"]
Balance = Literal["values", "tensors"]
FAINT = 0.2  # of a tensor's usual deviation: least divisor for a coordinate
_TINY = 1e-30


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Learned map from gradients, as vectors (row, value), to features for a regression that predicts the examples
    behind them: (row, feature). The map shifts and scales; with `basis`, it then projects on principal components."""

    slices: tuple[slice, ...]
    """Each tensor's range in a gradient vector."""
    direction: bool
    """True: each tensor's values in a gradient vector are first normalised to length 1."""
    mean: Tensor
    """Mean, subtracted from each vector (value,)."""
    factor: Tensor
    """Factor, multiplied after the mean is subtracted (value,)."""
    basis: Tensor | None = None
    """Principal components (value, feature), or None to keep all values as features."""

    def __call__(self, vectors: Tensor) -> Tensor:
        scaled = (_directions(vectors, self.slices) if self.direction else vectors) - self.mean
        scaled = scaled.mul_(self.factor)
        return scaled if self.basis is None else scaled @ self.basis


def learn(vectors: Tensor, slices: tuple[slice, ...], units: Units, balance: Balance) -> Scaling:
    """Learn how to scale gradients for a regression, so that each coordinate or tensor has a standard deviation of 1.
    Return the scaling.

    - `vectors` (row, value): a gradient per row.
    - `slices`: each tensor's range in a vector.
    - `units`: "coordinate" takes a deviation per coordinate, "tensor" a deviation per tensor. "direction" first
      normalises each tensor in a row to length 1, then takes a deviation per tensor.
    - `balance`: equal weight for every value ("values"), or for every tensor ("tensors")."""
    shown = _directions(vectors, slices) if units == "direction" else vectors
    mean = shown.mean(0)
    deviation = (shown - mean).square().mean(0).sqrt()
    factor = torch.empty_like(deviation)
    for at in slices:
        usual = deviation[at].square().mean().sqrt().clamp_min(_TINY)
        each = deviation[at].clamp_min(FAINT * usual) if units == "coordinate" else usual
        # a tensor with only rounding keeps factor 0
        silent = usual <= 1e-7 * shown[:, at].abs().max().clamp_min(_TINY)
        size = (at.stop - at.start) if balance == "tensors" else deviation.numel()
        factor[at] = 0.0 if silent else 1 / (each * size**0.5)
    return Scaling(slices=slices, direction=units == "direction", mean=mean, factor=factor)


def principal(scaled: Tensor, count: int, key: Key) -> Tensor:
    """Return the principal directions of the vectors `scaled`, the strongest first: (feature, direction).

    - `scaled` (row, feature): a vector per row, centred.
    - `count`: largest number of directions. Directions whose variance is rounding error are left out: they would differ
      between machines.
    - `key`: draws the start of the method, a randomised decomposition with a power step (Halko et al. 2011, algorithm
      4.4)."""
    rank = min(count, *scaled.shape)
    start = key.generator("principal", rank).standard_normal((scaled.shape[1], min(rank + 10, len(scaled))))
    span = torch.linalg.qr(scaled @ torch.from_numpy(start).to(scaled)).Q
    span = torch.linalg.qr(scaled @ (scaled.T @ span)).Q
    inner = (span.T @ scaled).double()
    variances, turned = (value.flip(-1) for value in torch.linalg.eigh(inner @ inner.T))  # descending
    rounding = max((torch.finfo(scaled.dtype).eps * len(inner)) ** 2, torch.finfo(inner.dtype).eps * len(inner))
    kept = variances[:rank] > rounding * variances[0]
    basis: Tensor = inner.T @ (turned[:, :rank][:, kept] / variances[:rank][kept].sqrt())
    return basis.to(scaled)


def _directions(vectors: Tensor, slices: tuple[slice, ...]) -> Tensor:
    parts = [vectors[:, at] / vectors[:, at].norm(dim=1, keepdim=True).clamp_min(_TINY) for at in slices]
    return torch.cat(parts, 1)
