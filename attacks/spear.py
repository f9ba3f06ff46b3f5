"""SPEAR: batches from a fully connected first layer with ReLU, by the zeros of each example's derivative."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.attacks.base import Attack
from bench.attacks.first_layer.certificate import Upper
from bench.attacks.first_layer.layer import RowSpace, first_layer, refusal
from bench.attacks.first_layer.sparse import sparse_directions
from bench.attacks.first_layer.unmixing import unmixed_examples
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction

_ROUNDING = {torch.float64: 1e-10, torch.float32: 1e-6}  # of a neuron's gradient: errors of its sums
_PUBLIC = 64  # public examples whose derivatives show zeros
_SPARSE = 0.1  # share of zeros, at least
_NOTES = (
    "scale and sign from the bias column, where the authors search them",
    "zeros within rounding of the gradient's precision, and each vector once more from all its zeros",
)


@dataclass(frozen=True, kw_only=True)
class Spear(Attack):
    """Find the examples behind the first layer's gradient [dW | db] by the sparsity of δ = ∂loss/∂z, the derivative at
    the first layer's output z. A ReLU makes δ zero for half of the neurons, and linear algebra turns the examples' δ
    into the examples (`first_layer/sparse.py`).

    The search is exact for small batches and wide layers: a set of B - 1 random neurons shows an example with a
    probability of about B · 2^(1 - B), so batches above about 16 are out of reach. Noise hides the zeros.

    Labels and loss come from δ, too; equal δ, simulated and from the gradient, is the certificate of an example
    (Dimitrov et al. 2024, §4.3; `first_layer/unmixing.py`)."""

    reference = "Dimitrov et al. 2024 (SPEAR)"
    iterative = False
    most_examples = 24

    def refuses(self, reading: Reading) -> str | None:
        reason = refusal(reading)
        layer = None if reason else first_layer(reading)
        if layer is None:
            return reason
        deltas = Upper.of(reading, layer, observed=False).deltas(reading.public_inputs[:_PUBLIC].flatten(1).double())
        sparse = bool((deltas == 0).double().mean() >= _SPARSE)
        return None if sparse else "it needs a ReLU after the first layer, whose derivative is often zero"

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        rounding = _ROUNDING[next(iter(reading.values.values())).dtype]

        def mixing(space: RowSpace, index: int) -> Tensor | None:
            random = key.generator("neurons", index)
            directions = sparse_directions(space.left.numpy(), space.singular.numpy(), random, rounding=rounding)
            if directions is None:
                return None
            return space.scaled(torch.linalg.inv((torch.from_numpy(directions) / space.singular).T))

        return unmixed_examples(reading, mixing, _NOTES)
