"""Promise: `map` finds the most probable examples: in closed form where the gradient is linear in them."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from sklearn.datasets import load_digits
from tests.linear import CLASSES, VALUES, linear_reading
from torch import Tensor, nn

from bench import api
from bench.attacks.search.scale import blind_to_scale, usual_brightness
from bench.attacks.search.space import Gaussian, public_space
from bench.models.mlp import Mlp
from bench.points import point as point_of
from bench.registry import entries as registry
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction

KEY = Key(seed=0)


def attack(reading: Reading, evaluations: int = 200, **params: object) -> Reconstruction:
    entry = registry.instance("attacks", "map", dict(params))
    made: Reconstruction = entry.reconstruct(reading, Budget(evaluations=evaluations, chunk=4), KEY)
    return made


def posterior_mean(reading: Reading, row: int, space: Gaussian, variance: float) -> Tensor:
    zero, eye = torch.zeros(VALUES, dtype=torch.float64), torch.eye(VALUES, dtype=torch.float64)
    a = (space.inputs(eye) - space.inputs(zero)).T
    mean, precision = space.inputs(zero), torch.linalg.inv(a @ a.T)
    error = torch.full((CLASSES,), 1 / CLASSES, dtype=torch.float64)
    error[int(reading.labels[row, 0])] -= 1  # type: ignore[index]
    right = reading.values["0.weight"][row, 0].double().T @ error / variance + precision @ mean
    return torch.linalg.solve(error.square().sum() / variance * eye + precision, right)


def test_described_noise_gives_the_posterior_mean() -> None:
    variance = 0.02
    reading, _ = linear_reading(variance)
    found = attack(reading).inputs[:, 0].double()
    for row in range(len(reading)):
        expected = posterior_mean(reading, row, public_space(reading), variance)
        assert torch.allclose(found[row], expected, atol=2e-4)


def test_the_prior_of_a_granted_label_gives_the_posterior_mean() -> None:
    """Classes of other means: each example's posterior is that of its class, in the order of the readings."""
    variance = 0.02
    reading, _ = linear_reading(variance)
    classes = torch.arange(len(reading.public_inputs)) % CLASSES
    reading = replace(reading, public_inputs=reading.public_inputs + classes[:, None], public_labels=classes)
    made = attack(reading)
    assert reading.labels is not None and made.trajectory is not None
    for row, label in enumerate(reading.labels[:, 0].tolist()):
        expected = posterior_mean(reading, row, public_space(reading, label), variance)
        assert torch.allclose(made.inputs[row, 0].double(), expected, atol=2e-4)
    marks = [mark for mark, _ in made.history]
    assert marks == sorted(set(marks)) and len(made.trajectory) == len(marks)
    assert torch.allclose(torch.tensor(made.history[-1][1]), made.loss)
    assert torch.allclose(made.trajectory[-1], made.inputs, atol=1e-4)


def test_the_priors_of_a_batch_give_the_joint_posterior_mean() -> None:
    """Two examples of two classes behind noise: each has the prior of its label."""
    variance = 0.005
    single, x = linear_reading(variance)
    classes = torch.arange(len(single.public_inputs)) % CLASSES
    public, labels = single.public_inputs + classes[:, None], torch.tensor([0, 2])
    x = x[:2] + labels[:, None]
    reading = replace(
        api.reading(
            api.gradient(single.model, x, labels), model=single.model, shape=(VALUES,), classes=CLASSES, public=public
        ),
        public_labels=classes,
        labels=labels[None],
        description=single.description,
        batch=2,
        client_examples=2,
        point=point_of("type-1"),
    )
    made = attack(reading, 400).inputs[0].double()
    eye = torch.eye(VALUES, dtype=torch.float64)
    errors = torch.full((CLASSES, 2), 1 / CLASSES, dtype=torch.float64)
    errors[labels, torch.arange(2)] -= 1
    design = torch.kron(errors / 2, eye)
    spaces = [public_space(reading, label) for label in labels.tolist()]
    zero = torch.zeros(VALUES, dtype=torch.float64)
    columns = [(space.inputs(eye) - space.inputs(zero)).T for space in spaces]
    precision = torch.block_diag(*(torch.linalg.inv(a @ a.T) for a in columns))
    mean = torch.cat([space.inputs(zero) for space in spaces])
    seen = reading.values["0.weight"][0, 0].double().flatten()
    expected = torch.linalg.solve(
        design.T @ design / variance + precision, design.T @ seen / variance + precision @ mean
    )
    assert torch.allclose(made.flatten(), expected, atol=1e-3)


def table(victims: int = 3, scale: float = 1.0) -> tuple[Reading, Tensor]:
    torch.manual_seed(2)
    model = Mlp(hidden=(12,), activation="tanh").build((VALUES,), CLASSES)
    x, y = torch.rand(victims, VALUES), torch.arange(victims) % CLASSES
    each = [api.gradient(model, x[n : n + 1], y[n : n + 1]) for n in range(victims)]
    gradients = {name: scale * torch.stack([gradient[name] for gradient in each]) for name in each[0]}
    return api.reading(gradients, model=model, shape=(VALUES,), classes=CLASSES, public=torch.rand(64, VALUES)), x


@pytest.mark.parametrize("evaluations", [1, 7, 50, 600])
def test_the_budget_holds(evaluations: int) -> None:
    reading, _ = table()
    made = attack(reading, evaluations)
    assert (made.evaluations <= evaluations).all()
    assert torch.isfinite(made.inputs).all()


def test_without_noise_the_example_comes_back() -> None:
    reading, x = table()
    made = attack(reading, 600)
    assert float((made.inputs[:, 0] - x).abs().max()) < 1e-2
    assert (made.restarts == 0).all()


def test_alone_as_in_company() -> None:
    reading, _ = table()
    together = attack(reading, 100)
    alone = attack(reading.of((1,)), 100)
    assert torch.allclose(alone.inputs[0], together.inputs[1], atol=1e-4)


def test_history_never_rises() -> None:
    reading, _ = table()
    losses = torch.tensor([losses for _, losses in attack(reading, 90, starts=2).history])
    assert (losses[1:] <= losses[:-1]).all()


def test_pictures_of_a_model_that_is_blind_to_scale_are_as_bright_as_public_ones() -> None:
    """GroupNorm behind a convolution without bias; `dlg-lenet` sees the scale."""
    shape, generator = (1, 8, 8), torch.Generator().manual_seed(0)
    public = torch.rand(20, *shape, generator=generator)
    for name, params, blind in (("resnet20", {"width": 8, "blocks": 1}, True), ("dlg-lenet", {}, False)):
        model = registry.instance("models", name, params).build(shape, 10).eval()
        gradients = {key: torch.ones_like(value) for key, value in model.named_parameters()}
        reading = api.reading(gradients, model=model, shape=shape, classes=10, public=public.numpy())
        assert blind_to_scale(reading) == blind, name
        dark = 0.1 * public[:6].reshape(2, 3, *shape)
        bright = usual_brightness(dark, reading)
        ratio = bright / dark
        assert ratio.flatten(2).std(-1).max() < 1e-5, "one factor a picture"
        at = public.flatten(1).quantile(0.99, dim=1).median()
        torch.testing.assert_close(bright.flatten(2).quantile(0.99, dim=-1), at.expand(2, 3))
        black = torch.zeros(1, 1, *shape)
        assert torch.equal(usual_brightness(black, reading), black)


@pytest.mark.parametrize("victims", [(0, 5, 9, 11), pytest.param(range(12), marks=pytest.mark.slow)])
def test_the_angle_finds_examples_that_a_trained_model_is_sure_of(victims: Sequence[int]) -> None:
    """Their gradients are faint: a second start, by the angle, finds what the distance does not."""
    digits = load_digits()
    x, y = torch.from_numpy(digits.images[:, None] / 16).float(), torch.from_numpy(digits.target).long()
    model = api.build("dlg-lenet", shape=(1, 8, 8), classes=10)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[:400]), y[:400]).backward()
        optimizer.step()
    truth, found = x[[400 + n for n in victims]], []
    each = [api.gradient(model, x[n : n + 1], y[n : n + 1]) for n in (400 + m for m in victims)]
    gradients = {name: torch.stack([gradient[name] for gradient in each]) for name in each[0]}
    reading = api.reading(gradients, model=model, shape=(1, 8, 8), classes=10, public=x[600:900].numpy())
    for starts in (1, 2):
        made = attack(reading, 150 * starts, starts=starts)
        found.append(int(((made.inputs[:, 0] - truth).square().flatten(1).mean(1) < 1e-2).sum()))
    assert found[1] >= found[0] + 3, found
