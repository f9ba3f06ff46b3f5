"""Promise: a factor hides nothing, however small or large."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from torch import Tensor

from bench import api
from bench.attacks.objective.rescale import rescaled
from bench.datasets.loading import load
from bench.defenses.base import Context, Setting, State, Transform
from bench.federated.describe import describe
from bench.federated.stages import Stages
from bench.points import point
from bench.registry import entries as registry
from bench.rng import Key
from bench.scoring.metrics import psnr_db
from bench.trip import Budget, Candidates, Reading, Reconstruction

VICTIMS = 2
FAST = (("map", 1e-21), ("gradinv", 1e20))
SETTING = Setting(clients=10, per_round=5, rounds=1, steps=1, batch=1, client_examples=9, rate=0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times(Transform):
    factor: float

    def apply(self, tensors: Mapping[str, Tensor], context: Context) -> dict[str, Tensor]:
        del context
        return {name: self.factor * value for name, value in tensors.items()}

    def expected(
        self, tensors: Mapping[str, Tensor], state: State, context: Context
    ) -> tuple[dict[str, Tensor], State]:
        return self.apply(tensors, context), state


def scaled(factor: float, *, adaptive: bool = True) -> tuple[Reading, Tensor]:
    """One digit's gradient each, times a factor, and the digits."""
    data = load(registry.instance("datasets", "digits", {}), "digits", None)
    truth = torch.from_numpy(data.training.floats(slice(0, VICTIMS)))
    labels = torch.from_numpy(data.training.labels[:VICTIMS].copy())
    model = api.build("mlp", shape=data.shape, classes=data.classes)
    each = [api.gradient(model, truth[n : n + 1], labels[n : n + 1]) for n in range(VICTIMS)]
    shown = {name: factor * torch.stack([gradient[name] for gradient in each]) for name in each[0]}
    reading = api.reading(
        shown, model=model, shape=data.shape, classes=data.classes, public=data.public.floats(slice(0, 200))
    )
    reading = replace(reading, labels=labels[:, None], point=point("type-2"))
    stages = Stages(setting=SETTING, transforms={"example": (Times(factor=factor),)}, states={})
    probe = {name: value[0] for name, value in shown.items()}
    weights = {name: value[0] for name, value in reading.weights.items()}
    description = describe(stages, point("type-2"), round_=0, unit=1.0, probe=probe, weights=weights)
    return replace(reading, description=description if adaptive else None), truth


def attacked(name: str, reading: Reading) -> Reconstruction:
    made: Reconstruction = registry.instance("attacks", name, {}).reconstruct(
        reading, Budget(evaluations=100), Key(seed=0)
    )
    return made


@cache
def unscaled_db(name: str) -> float:
    """The worse victim's decibels without a factor."""
    reading, truth = scaled(1.0)
    return float(psnr_db(truth.numpy(), attacked(name, reading).inputs[:, 0].numpy()).min())


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        pytest.param(name, factor, marks=[pytest.mark.slow] * ((name, factor) not in FAST))
        for name in ("map", "gradinv")
        for factor in (1e-21, 1e-12, 1e12, 1e20)
    ],
)
def test_who_knows_of_a_factor_is_not_stopped_by_it(name: str, factor: float) -> None:
    reading, truth = scaled(factor)
    found = attacked(name, reading).inputs[:, 0].numpy()
    assert unscaled_db(name) > 20
    assert psnr_db(truth.numpy(), found).min() > unscaled_db(name) - 10


def test_the_cosine_needs_no_knowledge_of_it() -> None:
    reading, truth = scaled(1e20, adaptive=False)
    assert psnr_db(truth.numpy(), attacked("gradinv", reading).inputs[:, 0].numpy()).min() > 20


@pytest.mark.parametrize("factor", [1e-21, 1e-7, 1e7, 1e20])
def test_description_and_values_are_scaled_alike_by_a_power_of_two(factor: float) -> None:
    reading, truth = scaled(factor)
    other = rescaled(reading)
    assert reading.description is not None and other.description is not None
    norm = torch.stack([value.double().flatten(1).square().sum(1) for value in other.values.values()]).sum(0).sqrt()
    assert 0.5 < float(norm.median()) < 2
    name = next(iter(reading.values))
    ratio = float(other.values[name].double().sum() / reading.values[name].double().sum())
    assert math.log2(ratio) == pytest.approx(round(math.log2(ratio)), abs=1e-6)
    gradients = {n: (v[:, 0] / factor)[:, None] for n, v in reading.values.items()}
    candidates = Candidates(inputs=truth[:, None], targets=torch.eye(10)[[0, 1]][:, None], weights={})
    for scale, each in ((factor, reading), (factor * ratio, other)):
        assert each.description is not None
        observed = {n: v[:, 0] for n, v in each.values.items()}
        simulated = each.description.simulate(gradients, observed, candidates)
        assert torch.allclose(simulated[name] / scale, gradients[name][:, 0], rtol=1e-5)


def test_readings_of_usual_size_and_of_none_are_left_alone() -> None:
    reading, _ = scaled(1.0)
    assert rescaled(reading) is reading
    silent = replace(reading, values={name: torch.zeros_like(value) for name, value in reading.values.items()})
    assert rescaled(silent) is silent
