"""Promise: a single example's values inside a ReLU net follow from its gradient, and are the start of `map`."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from bench import api
from bench.attacks.objective.mismatch import observations
from bench.attacks.search.activations import start_by_layers
from bench.attacks.search.layerwise import chain, known_values
from bench.attacks.search.space import public_space
from bench.registry import entries as registry
from bench.rng import Key
from bench.trip import Budget, Reading

SHAPE, CLASSES = (1, 8, 8), 4


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1), nn.ReLU(), nn.Flatten(), nn.Linear(128, CLASSES)
    )


def pictures(count: int, seed: int = 1) -> Tensor:
    torch.manual_seed(seed)
    return nn.functional.interpolate(torch.rand(count, 1, 4, 4), 8, mode="bilinear")


def taken(model: nn.Module, x: Tensor) -> Reading:
    labels = torch.arange(len(x)) % CLASSES
    each = [api.gradient(model, x[n : n + 1], labels[n : n + 1]) for n in range(len(x))]
    gradients = {name: torch.stack([gradient[name] for gradient in each]) for name in each[0]}
    return api.reading(gradients, model=model, shape=SHAPE, classes=CLASSES, public=pictures(80, seed=2))


def means(model: nn.Sequential) -> list[Tensor]:
    x, values = pictures(20, seed=3).double(), []
    for layer in model.double():
        if not isinstance(layer, nn.ReLU | nn.Flatten):
            values.append(x.mean(0))
        x = layer(x).detach() if not isinstance(layer, nn.Flatten) else x
        if isinstance(layer, nn.ReLU) and len(values) == 2:
            return [*values, x.mean(0)]
    raise AssertionError


def test_values_follow_from_the_gradient() -> None:
    model, x = net().double(), pictures(1).double()
    gradients = {name: value.double() for name, value in api.gradient(model, x, torch.tensor([1])).items()}
    layers, weights = chain(model), {name: value.detach() for name, value in model.named_parameters()}
    assert layers is not None
    known = known_values(layers, weights, gradients, means(model))
    assert known is not None
    assert known.layer == 0
    assert torch.allclose(known.along, x[0].flatten(1) @ known.directions.T, atol=1e-6)
    assert torch.allclose(known.outputs, model[:2](x)[0], atol=1e-6)


def test_the_start_is_the_example() -> None:
    model, x = net(), pictures(4)
    reading = taken(model, x)
    start = start_by_layers(reading, observations(reading), public_space(reading), 200)
    assert start is not None
    assert bool(start.found.all())
    assert float((start.inputs[:, 0] - x.flatten(1)).abs().mean()) < 5e-3


def test_map_is_right_within_a_small_budget() -> None:
    model, x = net(), pictures(4)
    attack = registry.instance("attacks", "map", {})
    made = attack.reconstruct(taken(model, x), Budget(evaluations=300, chunk=4), Key(seed=0))
    assert (made.evaluations <= 300).all()
    assert float((made.inputs[:, 0] - x).abs().mean()) < 5e-3


def test_a_changed_gradient_has_no_start() -> None:
    reading = taken(net(), pictures(2))
    noisy = {name: value + 1e-2 * torch.randn(value.shape) for name, value in reading.values.items()}
    start = start_by_layers(
        replace(reading, values=noisy), observations(replace(reading, values=noisy)), public_space(reading), 100
    )
    assert start is not None
    assert not bool(start.found.any())


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES)),
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(72, CLASSES)),
        nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(72, CLASSES)),
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(18, CLASSES)),
    ],
)
def test_other_models_have_no_chain(model: nn.Sequential) -> None:
    assert chain(model) is None
