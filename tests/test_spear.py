"""SPEAR: exact batches from the zeros of a ReLU's derivatives, and what the attack knows of its own success."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.attacks.first_layer.sparse import sparse_directions
from bench.attacks.spear import Spear
from bench.contracts.situations import situation
from bench.gradients import group_gradients, one_hot
from bench.models.mlp import Mlp
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction

SHAPE, CLASSES = (1, 6, 6), 10


def batch(examples: int, dtype: torch.dtype = torch.float64, activation: str = "relu") -> tuple[Reading, Tensor]:
    """A reading of Gaussian pictures, which no prior describes, by a net with 200 units a layer; and the pictures."""
    case = situation("type-1", batch=3, readings=1)
    random = torch.Generator().manual_seed(examples)
    truth = torch.randn(1, examples, *SHAPE, generator=random, dtype=dtype)
    labels = torch.randint(CLASSES, (1, examples), generator=random)
    model = Mlp(activation=activation).build(SHAPE, CLASSES).to(dtype)  # type: ignore[arg-type]
    weights = {name: value.to(dtype) for name, value in Mlp().initial(model, 0).items()}
    gradients = group_gradients(model, weights, truth, one_hot(labels, CLASSES, dtype))
    public = torch.randn(300, *SHAPE, generator=random)
    reading = replace(
        case.reading,
        model=model,
        shape=SHAPE,
        batch=examples,
        public_inputs=public,
        public_mean=public.mean(0),
        public_labels=torch.full((300,), -1),
        weights={name: value[None] for name, value in weights.items()},
        values={name: value.detach()[:, None] for name, value in gradients.items()},
    )
    return reading, truth


def run(reading: Reading) -> Reconstruction:
    return Spear().reconstruct(reading, Budget(evaluations=1), Key(seed=0))


def error(result: Reconstruction, truth: Tensor) -> float:
    """Largest distance of a true example to the nearest reconstruction, relative to the example's norm."""
    gaps = torch.cdist(truth[0].flatten(1).double(), result.inputs[0].flatten(1).double())
    return float((gaps.min(1).values / truth[0].flatten(1).double().norm(dim=1)).max())


@pytest.mark.parametrize("examples", [1, 2, 5, 8])
def test_a_batch_is_exact_and_certain(examples: int) -> None:
    reading, truth = batch(examples)
    assert Spear().refuses(reading) is None
    result = run(reading)
    assert error(result, truth) < 1e-8
    assert result.certificate is not None
    assert float(result.certificate[0]) == 1


def test_single_precision() -> None:
    reading, truth = batch(6, torch.float32)
    assert error(run(reading), truth) < 1e-2


def test_noise_hides_the_zeros() -> None:
    reading, _ = batch(6)
    random = torch.Generator().manual_seed(1)
    values = {
        name: value + 0.05 * value.std() * torch.randn(value.shape, generator=random, dtype=value.dtype)
        for name, value in reading.values.items()
    }
    result = run(replace(reading, values=values))
    assert result.certificate is not None
    assert float(result.certificate[0]) == 0


def test_a_sigmoid_is_refused() -> None:
    reason = Spear().refuses(batch(3, activation="sigmoid")[0])
    assert reason is not None
    assert "ReLU" in reason


def test_sparse_vectors_in_a_mixed_basis() -> None:
    """Known vectors with half of their values zero, behind a random mixture of their space."""
    random = np.random.default_rng(2)
    vectors = random.standard_normal((150, 6)) * (random.random((150, 6)) < 0.5)
    basis, singular, _ = np.linalg.svd(vectors @ random.standard_normal((6, 6)), full_matrices=False)
    directions = sparse_directions(basis, singular, random, rounding=1e-10)
    assert directions is not None
    found = basis @ directions.T
    cosines = np.abs(found.T @ vectors) / np.linalg.norm(found, axis=0)[:, None] / np.linalg.norm(vectors, axis=0)
    assert np.sort(cosines.max(0)) == pytest.approx(np.ones(6), abs=1e-12)
