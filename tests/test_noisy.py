"""Promise: undeclared Gaussian noise on an update is recognised, and searches behind noise use their budget."""

import copy
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bench import api
from bench.assess.client import of_reading, of_recording
from bench.own.noisy import undeclared
from bench.own.recorded import Recording
from bench.trip import Reading

DIGITS = load_digits()
IMAGES, CLASSES = torch.tensor(DIGITS.images[:, None] / 16).float(), torch.tensor(DIGITS.target)
X, Y, PUBLIC = IMAGES[:8], CLASSES[:8], IMAGES[1000:1300]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Sigmoid(), nn.Linear(32, 10))


def trained(where: str, deviation: float, steps: int, momentum: float = 0.0) -> Recording:
    """A recorded loop with noise: on each gradient, or on the weights after the training."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    with api.recording(model, optimizer) as sent:
        for step in range(steps):
            optimizer.zero_grad()
            cross_entropy(model(X[2 * step : 2 * step + 2]), Y[2 * step : 2 * step + 2]).backward()
            for value in model.parameters() if where == "gradient" else ():
                assert value.grad is not None
                value.grad += deviation / 0.1 * torch.randn_like(value)
            optimizer.step()
        with torch.no_grad():
            for value in model.parameters() if where == "weights" else ():
                value.add_(deviation * torch.randn_like(value))
    return sent


@pytest.mark.parametrize("where", ["gradient", "weights"])
@pytest.mark.parametrize(("deviation", "steps", "momentum"), [(1e-5, 1, 0.0), (1e-3, 1, 0.0), (1e-4, 3, 0.9)])
def test_noise_of_a_recorded_loop_is_recognised(where: str, deviation: float, steps: int, momentum: float) -> None:
    """Noise of several steps with momentum adds up by 1, 1.9 and 2.71: a deviation of 3.46."""
    sent = trained(where, deviation, steps, momentum)
    total = deviation * (1 + 1.9**2 + 2.71**2) ** 0.5 if where == "gradient" and steps == 3 else deviation
    assert sent.line.startswith("explains what was sent up to Gaussian noise of deviation ")
    assert float(sent.line.split("deviation ")[1].split(",")[0]) == pytest.approx(total, rel=0.06)
    client = of_recording(sent, PUBLIC, CLASSES[1000:1300])
    assert client.update is not None and client.update.description is not None
    assert api.check(client.update, *sent.truth).explained


def gradient() -> tuple[nn.Module, dict[str, Tensor]]:
    model = network()
    cross_entropy(model(X), Y).backward()
    return model, {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


def given(model: nn.Module, sent: dict[str, Tensor], **more: Any) -> Reading:
    return api.reading(sent, model=model, shape=(1, 8, 8), classes=10, batch=8, public=PUBLIC, labels=Y, **more)


def test_noise_on_a_reading_is_named_and_attacked() -> None:
    model, true = gradient()
    reading = given(model, {name: value + 0.01 * torch.randn_like(value) for name, value in true.items()})
    found = api.check(reading, X, Y)
    assert found.explained is False and found.noise is not None
    assert found.noise["variance"] == pytest.approx(1e-4, rel=0.1)
    assert "the difference is Gaussian noise, which was not declared; give defense={'name': 'gaussian'" in found.line
    again = given(
        copy.deepcopy(model), {name: value[0, 0] for name, value in reading.values.items()}, defense=found.noise
    )
    assert api.check(again, X, Y).explained
    client = of_reading(reading, X[None], Y[None])
    assert client.update is not None and client.line.endswith("Attacked as if declared.")


@pytest.mark.parametrize("kind", ["laplace", "of the last layer", "by the gradient", "other examples", "clipped"])
def test_other_differences_are_no_gaussian_noise(kind: str) -> None:
    model, true = gradient()
    cross_entropy(model(IMAGES[8:16]), CLASSES[8:16]).backward()
    other = dict(model.named_parameters())
    sent = {}
    for name, value in true.items():
        random = torch.randn_like(value)
        sent[name] = {
            "laplace": value + 0.01 * torch.distributions.Laplace(0.0, 0.7).sample(value.shape),
            "of the last layer": value + 0.01 * random * name.startswith("3"),
            "by the gradient": value * (1 + random),
            "other examples": other[name].grad - value,  # type: ignore[operator]
            "clipped": value.clamp(-0.01, 0.01),
        }[kind]
    assert (
        undeclared(given(model, sent), *({name: value[None] for name, value in each.items()} for each in (sent, true)))
        is None
    )


def test_the_search_behind_noise_uses_its_budget() -> None:
    """The first start of three explains the reading, and has a third of the evaluations."""
    model, true = gradient()
    sent = {name: value + 1e-4 * torch.randn_like(value) for name, value in true.items()}
    found = api.attack(given(model, sent, defense={"name": "gaussian", "variance": 1e-8}), "map", evaluations=60)
    assert int(found.evaluations.max()) == 60
