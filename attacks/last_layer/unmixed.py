"""Divide a batch's gradient at the last layer into its examples: inputs of the layer are not negative after a ReLU.

The last layer's gradient for a batch is [dW | db] = Σ_i a_i (h_i, 1)ᵀ with a_i = (p_i - y_i) / B, probabilities p_i,
labels y_i as unit vectors, and the layer's inputs h_i. With fewer examples than classes, the rows span the space of all
(h_i, 1). After a ReLU, h_i ≥ 0 with many zeros: each (h_i, 1) is an extreme ray of the cone of vectors without negative
values in this space. SPEAR (Dimitrov et al. 2024, §4) finds sparse δ_i behind a ReLU in the column space, by sampling.
In the row space, all signs are equal, so linear programs replace the sampling: each program minimises a
vector's sum while one coordinate is 1."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog
from torch import Tensor
from torch.func import functional_call

from bench.attacks.labels.head import Head, head, usual
from bench.rng import Key
from bench.trip import Reading

Floats = NDArray[np.float64]

_PROGRAMS = 12  # linear programs per example
_ROUNDING = 1e-6  # of a row's length: largest error of float32 sums
_RANK = 1e-6  # of the largest singular value: smaller singular values are rounding
_SAME = 1e-5  # 1 - |cosine| of two results for the same example
_INDEPENDENT = 1e-3  # of a vector's length: part outside the span of the others
_PUBLIC = 64  # public examples whose features show zeros
_SPARSE = 0.1  # share of zeros among public features, at least
# Of ‖a_i‖, simulated from h_i: distance to a_i from the gradient.  Measured on 32 batches of eight (MNIST, CIFAR-10):
# right examples have up to .09, at errors of h_i up to .01; the only wrong batch has .8 at least.
_AGREES = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmixed:
    """Inputs of the last layer for the examples of a batch, from the batch's gradient. Examples whose gradient is
    rounding beside the others' gradients are missing."""

    features: Tensor
    """Layer inputs (example, feature) in float64."""
    labels: Tensor
    """Label of each example (example,)."""


def unmixable(reading: Reading) -> Head | None:
    """Return the last layer if the examples' inputs of this layer can follow from the gradient of the batch `reading`
    (`unmixed`), otherwise None. Conditions: several examples, fewer than classes; a single undefended gradient; a
    linear last layer with bias, whose inputs are not negative and often 0."""
    alone = len(reading.rounds) == 1 and reading.steps == 1 and reading.description is None and usual(reading)
    if not alone or not 1 < reading.examples < reading.classes or reading.linked != "vector":
        return None
    last = head(reading)
    if last is None or not last.logits or last.name("bias") not in reading.weights:
        return None
    features = features_of(reading, last, reading.public_inputs[:_PUBLIC])
    fits = bool((features >= 0).all()) and bool((features == 0).double().mean() >= _SPARSE)
    return last if fits else None


def features_of(reading: Reading, last: Head, inputs: Tensor) -> Tensor:
    """Return the inputs of the `last` layer for examples `inputs` (example, *shape): (example, feature), differentiable
    by `inputs`. `reading`: source of model and weights."""
    calls: list[Tensor] = []
    handle = reading.model.get_submodule(last.path).register_forward_pre_hook(
        lambda _, arguments: calls.append(arguments[0])
    )
    weights = {name: value[0] for name, value in reading.weights.items()}
    try:
        functional_call(reading.model, weights, (inputs.to(next(iter(weights.values()))),))
    finally:
        handle.remove()
    return calls[0]


def unmixed(reading: Reading, last: Head, gradient: dict[str, Tensor], row: int, key: Key) -> Unmixed | None:
    """Divide the last layer's gradient of a reading into its examples. Return None if no set of examples explains the
    gradient.

    - `reading`: the attacked readings, for which `unmixable` returned `last`.
    - `gradient`: the observed gradients, name → (reading, *shape).
    - `row`: the reading's position in the batch.
    - `key`: draws the coordinates of the linear programs."""
    weight, bias = (gradient[last.name(name)][row].double().cpu() for name in ("weight", "bias"))
    table = torch.cat([weight, bias[:, None]], 1).numpy()
    if not np.isfinite(table).all():
        return None
    vectors = _extreme_rays(table, reading.examples, key.generator("rays", reading.indices[row]))
    if vectors is None or not bool((vectors[:, -1] > 0).all()):
        return None
    vectors /= vectors[:, -1:]
    signals = torch.from_numpy(np.linalg.lstsq(vectors.T, table.T)[0])  # a_i (example, class)
    features = torch.from_numpy(vectors[:, :-1])
    own, offset = (reading.weights[last.name(name)][0].double().cpu() for name in ("weight", "bias"))
    labels = signals.argmin(1)
    expected = (features @ own.T + offset).softmax(1)
    expected[torch.arange(len(labels)), labels] -= 1
    expected *= (signals * expected).sum() / expected.square().sum()  # 1 / B, unless the reading was rescaled
    gap = (signals - expected).norm(dim=1) / expected.norm(dim=1)
    return Unmixed(features=features, labels=labels) if bool((gap <= _AGREES).all()) else None


def _extreme_rays(table: Floats, count: int, random: np.random.Generator) -> Floats | None:
    """Return independent vectors without negative values in the row space of `table` (class, feature + 1), those with
    the most zeros: (vector, feature + 1), as many as the rank, and `count` at most. Return None if there are fewer."""
    _, singular, right = np.linalg.svd(table, full_matrices=False)
    count = min(count, int((singular > _RANK * singular[0]).sum()))
    if count < 2:
        return None
    singular, basis = singular[:count], right[:count].T
    lengths = np.linalg.norm(basis * singular, axis=1)
    live = lengths > _ROUNDING * lengths.max()
    lines, lengths = basis[live], lengths[live]
    total = lines.sum(0)
    found: list[tuple[int, Floats]] = []
    for place in random.permutation(len(lines))[: _PROGRAMS * count]:
        program = linprog(
            total / np.linalg.norm(total),
            A_ub=-lines,
            b_ub=np.zeros(len(lines)),
            A_eq=lines[place][None],
            b_eq=[1.0],
            bounds=(None, None),
        )
        if program.status == 0:
            direction = program.x / np.linalg.norm(program.x)
            errors = _ROUNDING * lengths * np.linalg.norm(direction / singular)
            zeros = int((np.abs(lines @ direction) <= errors).sum())
            found.append((zeros, direction))
    span, chosen = np.zeros((0, count)), list[Floats]()
    for _, direction in sorted(found, key=lambda each: -each[0]):
        outside = direction - span.T @ (span @ direction)
        if np.linalg.norm(outside) > _INDEPENDENT:
            span = np.concatenate([span, outside[None] / np.linalg.norm(outside)])
            chosen.append(direction)
    return np.stack(chosen) @ basis.T if len(chosen) == count else None
