"""Promise: what matching adds to its parts: a noise model, and rows continued in double precision."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bench import api
from bench.attacks.objective.mismatch import observations
from bench.attacks.search.prior import NoiseModel
from bench.contracts.situations import situation
from bench.federated.describe import Composition
from bench.models.lenet import DlgLenet
from bench.models.mlp import Mlp
from bench.registry import entries as registry
from bench.rng import Key
from bench.trip import Budget, Noise, Reading, Reconstruction

KEY = Key(seed=0)


def table_reading(victims: int = 3) -> tuple[Reading, Tensor]:
    torch.manual_seed(2)
    model = Mlp(hidden=(12,), activation="tanh").build((6,), 3)
    x, y = torch.rand(victims, 6), torch.arange(victims) % 3
    each = [api.gradient(model, x[n : n + 1], y[n : n + 1]) for n in range(victims)]
    gradients = {name: torch.stack([gradient[name] for gradient in each]) for name in each[0]}
    return api.reading(gradients, model=model, shape=(6,), classes=3, public=torch.rand(16, 6)), x


def run(reading: Reading, evaluations: int, **params: object) -> Reconstruction:
    attack = registry.instance("attacks", "cpl", {"line_search": "backtracking", "start": "uniform", **params})
    reconstruction: Reconstruction = attack.reconstruct(reading, Budget(evaluations=evaluations, chunk=2), KEY)
    return reconstruction


def test_rows_that_single_precision_stops_go_on_in_double() -> None:
    reading, x = table_reading()
    single, double = run(reading, 400), run(reading, 400, refine_float64=True)
    assert (double.evaluations <= 400).all()
    assert (double.evaluations >= single.evaluations).all()
    assert (double.loss <= single.loss).all()
    assert (double.loss < single.loss).any(), "double precision sees below single's rounding"
    assert double.inputs.dtype == torch.float32
    errors = [(result.inputs[:, 0] - x).abs().amax(1) for result in (single, double)]
    assert (errors[1] <= errors[0] + 1e-6).all()
    assert double.labels.tolist() == single.labels.tolist()


def test_nothing_is_refined_without_budget() -> None:
    reading, _ = table_reading()
    single, double = run(reading, 3), run(reading, 3, refine_float64=True)
    assert torch.equal(single.inputs, double.inputs)
    assert torch.equal(single.evaluations, double.evaluations)


@pytest.mark.parametrize(("law", "count"), [("gaussian", 1), ("gaussian", 4), ("laplace", 1), ("laplace", 4)])
def test_the_weight_of_the_prior_is_that_of_the_most_probable_candidate(law: str, count: int) -> None:
    """-2v log p of the noise is the squared distance, so the prior's -log p weighs 2v; Laplace's absolute
    distance over its scale b = √(v/2), so b.  A mean of several is Gaussian with v over their number."""
    model = DlgLenet().build((1, 12, 12), 4)
    x, y = torch.rand(1, 1, 12, 12), torch.tensor([1])
    gradients = {name: value[None] for name, value in api.gradient(model, x, y).items()}
    bare = api.reading(gradients, model=model, shape=(1, 12, 12), classes=4, public=torch.rand(8, 1, 12, 12))
    noisy = replace(
        bare,
        rounds=(0,) * count,
        description=Composition(parts=(), contexts={}, noise=Noise(law=law, variance=0.02)),  # type: ignore[arg-type]
        values={name: value.expand(-1, count, *value.shape[2:]) for name, value in bare.values.items()},
        weights={name: value.expand(count, *value.shape[1:]) for name, value in bare.weights.items()},
    )
    observed = observations(noisy)
    assert len(observed) == 1, "what differs by added noise alone is averaged"
    noise = NoiseModel.of(noisy, len(observed))
    assert noise.variance == pytest.approx(0.02 / count)
    expected = (0.02 / 2) ** 0.5 if law == "laplace" and count == 1 else 2 * 0.02 / count
    assert noise.weight == pytest.approx(expected)
    assert NoiseModel.of(bare, 1).variance == NoiseModel.of(bare, 1).weight == 0
    flat = torch.full((1, 1, 1, 12, 12), 0.5)
    assert float(noise.prior(flat, (0.0, 1.0))) == 0, "no edges, nothing out of range"
    assert float(noise.prior(flat + 1, (0.0, 1.0))) > 0
    assert float(noise.prior(torch.rand_like(flat), (0.0, 1.0))) > 0


@pytest.mark.slow
def test_a_noise_model_keeps_the_attacker_from_fitting_the_noise() -> None:
    """Four noisy readings of a flat image: the plain attacker fits the noise, the adaptive one does not."""
    torch.manual_seed(0)
    model = DlgLenet().build((1, 12, 12), 4)
    x, y = torch.full((1, 1, 12, 12), 0.4), torch.tensor([1])
    clean = api.gradient(model, x, y)
    noisy = {name: value[None] + 0.02 * torch.randn(4, *value.shape) for name, value in clean.items()}
    public = torch.rand(8, 1, 1, 1).expand(8, 1, 12, 12).contiguous()
    plain = api.reading(
        noisy, model=model, shape=(1, 12, 12), classes=4, public=public, labels=torch.ones(4, dtype=torch.long)
    )
    adaptive = replace(
        plain, description=Composition(parts=(), contexts={}, noise=Noise(law="gaussian", variance=0.02**2))
    )
    errors = [float((run(r, 150).inputs[:, 0] - x).square().mean().sqrt()) for r in (plain, adaptive)]
    assert errors[1] < errors[0] / 2


@pytest.mark.parametrize("deviation", [1e-4, 1e-3, 1e-2])
def test_a_readings_own_noise_is_told_from_a_bound_far_above_it(deviation: float) -> None:
    """Three examples of digits, whose gradients are far above weak noise in most coordinates."""
    case = situation("type-1", batch=3, readings=16)
    generator = torch.Generator().manual_seed(0)
    values = {
        name: value + deviation * torch.randn(value.shape, generator=generator, dtype=value.dtype)
        for name, value in case.reading.values.items()
    }
    bound = Noise(variance=1.0, bound=True)
    noisy = replace(case.reading, values=values, description=Composition(parts=(), contexts={}, noise=bound))
    found = NoiseModel.of(noisy, 1).of_rows({name: value[:, 0] for name, value in values.items()})
    assert float(found.mean()) == pytest.approx(deviation**2, rel=0.2)
    assert (found / deviation**2).log().abs().max() < 1.0
