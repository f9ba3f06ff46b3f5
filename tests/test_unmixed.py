"""A batch's gradient at the last layer behind a ReLU: each example's features, and the images with these features."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from bench.attacks.last_layer.unmixed import Unmixed, features_of, unmixable, unmixed
from bench.attacks.map import Map
from bench.attacks.objective.mismatch import observations
from bench.contracts.situations import situation
from bench.gradients import group_gradients, one_hot
from bench.rng import Key
from bench.trip import Budget, Reading

CLASSES, EDGE = 10, 8


def net(activation: nn.Module) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        activation,
        nn.Conv2d(8, 8, 3, padding=1),
        activation,
        nn.Flatten(),
        nn.Linear(8 * EDGE * EDGE, CLASSES),
    )


def batch(
    examples: int, dtype: torch.dtype = torch.float64, activation: nn.Module | None = None, *, granted: bool = False
) -> tuple[Reading, Tensor, Tensor]:
    """Two readings of `examples` digits each, without a defense; the examples and their labels."""
    case = situation("type-1", batch=3, readings=2)
    model = net(activation or nn.ReLU()).to(dtype)
    random = torch.Generator().manual_seed(examples)
    chosen = torch.randperm(len(case.reading.public_inputs), generator=random)[: 2 * examples].view(2, examples)
    truth, labels = case.reading.public_inputs[chosen].to(dtype), case.reading.public_labels[chosen]
    weights = {name: value.detach() for name, value in model.state_dict().items()}
    gradients = group_gradients(model, weights, truth, one_hot(labels, CLASSES, dtype))
    reading = replace(
        case.reading,
        model=model,
        batch=examples,
        weights={name: value[None] for name, value in weights.items()},
        values={name: value.detach()[:, None] for name, value in gradients.items()},
        labels=labels.sort(1).values if granted else None,
    )
    return reading, truth, labels


def found(reading: Reading, row: int = 0) -> Unmixed | None:
    last = unmixable(reading)
    assert last is not None
    return unmixed(reading, last, observations(reading)[0], row, Key(seed=0))


def errors(result: Unmixed, features: Tensor, labels: Tensor) -> Tensor:
    """Relative error of each true example's features, against the reconstruction with the same label."""
    gaps = torch.cdist(features.double(), result.features) / features.double().norm(dim=1, keepdim=True)
    least, nearest = gaps.min(1)
    assert torch.equal(result.labels[nearest], labels)
    return least


@pytest.mark.parametrize("examples", [2, 5, 9])
def test_features_of_each_example_are_exact(examples: int) -> None:
    reading, truth, labels = batch(examples)
    last = unmixable(reading)
    assert last is not None
    result = found(reading, 1)
    assert result is not None
    assert errors(result, features_of(reading, last, truth[1]), labels[1]).max() < 1e-9


def test_single_precision_and_a_factor_on_the_gradient_change_little() -> None:
    reading, truth, labels = batch(8, torch.float32)
    shorter = replace(reading, values={name: value / 50 for name, value in reading.values.items()})
    last = unmixable(reading)
    assert last is not None
    for each in (reading, shorter):
        result = found(each)
        assert result is not None
        assert errors(result, features_of(reading, last, truth[0]), labels[0]).max() < 1e-3


def test_an_example_below_rounding_is_missing() -> None:
    """Six examples and a seventh, whose gradient has a share of 1e-9."""
    reading, truth, labels = batch(7)
    weights = {name: value[0] for name, value in reading.weights.items()}
    targets = one_hot(labels, CLASSES, torch.float64)
    first, last_one = (
        group_gradients(reading.model, weights, truth[:, rows], targets[:, rows]) for rows in (slice(0, 6), slice(6, 7))
    )
    values = {name: (value + 1e-9 * last_one[name]).detach()[:, None] for name, value in first.items()}
    result, last = found(replace(reading, values=values)), unmixable(reading)
    assert result is not None
    assert last is not None
    assert len(result.labels) == 6
    assert errors(result, features_of(reading, last, truth[0, :6]), labels[0, :6]).max() < 1e-4


def test_noise_gives_no_result() -> None:
    reading, _, _ = batch(6)
    noise = torch.Generator().manual_seed(5)
    values = {
        name: value + 0.05 * value.std() * torch.randn(value.shape, generator=noise, dtype=value.dtype)
        for name, value in reading.values.items()
    }
    assert found(replace(reading, values=values)) is None


def test_conditions() -> None:
    assert unmixable(batch(9)[0]) is not None
    assert unmixable(batch(10)[0]) is None  # the rows span fewer directions than examples
    assert unmixable(batch(1)[0]) is None
    assert unmixable(batch(5, activation=nn.Sigmoid())[0]) is None  # no zeros
    assert unmixable(batch(5, activation=nn.Tanh())[0]) is None


@pytest.mark.parametrize("granted", [False, True])
def test_map_reconstructs_a_batch_example_by_example(granted: bool) -> None:
    reading, truth, labels = batch(7, torch.float32, granted=granted)
    result = Map().reconstruct(reading, Budget(evaluations=60), Key(seed=0))
    assert any("features" in note for note in result.notes)
    assert bool((result.evaluations <= 60).all())
    assert torch.equal(result.labels.sort(1).values, labels.sort(1).values)
    gaps = (result.inputs[:, :, None] - truth[:, None]).square().flatten(3).mean(3)
    assert float((-10 * gaps.min(1).values.log10()).median()) > 25
