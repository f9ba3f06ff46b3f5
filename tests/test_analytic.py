"""Exact inversion of a first fully connected layer: one example, ReLU batches, noise, pruning."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from bench.attacks.analytic import Analytic
from bench.contracts.situations import Situation, situation
from bench.gradients import group_gradients, one_hot
from bench.kinds.tables import TABLE
from bench.models.base import Normalise
from bench.models.mlp import Mlp
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction


def _run(reading: Reading) -> Reconstruction:
    return Analytic().reconstruct(reading, Budget(evaluations=1), Key(seed=0))


def _read(case: Situation, module: nn.Module, seeds: tuple[int, ...] = (0,)) -> Reading:
    """The same examples seen through `module`, one observation for each seed of its weights."""
    module = module.to(case.truth.dtype)
    drawn = [{name: value.to(case.truth.dtype) for name, value in Mlp().initial(module, s).items()} for s in seeds]
    targets = one_hot(case.labels, case.reading.classes, case.truth.dtype)
    gradients = [group_gradients(module, weights, case.truth, targets) for weights in drawn]
    return replace(
        case.reading,
        model=module,
        rounds=tuple(range(len(seeds))),
        weights={name: torch.stack([weights[name] for weights in drawn]) for name in drawn[0]},
        values={name: torch.stack([gradient[name].detach() for gradient in gradients], 1) for name in drawn[0]},
    )


def _images(batch: int = 1, readings: int = 6, dtype: torch.dtype = torch.float64, seed: int = 0) -> Situation:
    """Random images of 1×8×8 pixels, a third of them black as in digits, with random labels."""
    case = situation("type-1", batch=batch, readings=readings)
    draw = torch.Generator().manual_seed(seed)
    values = torch.rand(case.truth.shape, generator=draw, dtype=torch.float64)
    labels = torch.randint(10, case.labels.shape, generator=draw)
    return replace(case, truth=(1.5 * values - 0.5).clamp_min(0).to(dtype), labels=labels)


def _psnr(inputs: Tensor, truth: Tensor) -> Tensor:
    """Decibels of each example, (reading, example)."""
    return -10 * (inputs.double() - truth.double()).square().flatten(2).mean(2).clamp_min(1e-40).log10()


def _best(inputs: Tensor, truth: Tensor) -> Tensor:
    """Decibels of each true example against the nearest reconstruction."""
    each = [_psnr(inputs[:, [n]].expand_as(truth), truth) for n in range(inputs.shape[1])]
    return torch.stack(each).max(0).values


def _noisy(reading: Reading, share: float) -> Reading:
    """Gaussian noise of `share` times the first layer's largest value, everywhere."""
    deviation = share * float(reading.values["1.weight"].abs().max())
    draw = torch.Generator().manual_seed(3)
    return replace(
        reading,
        values={
            name: v + deviation * torch.randn(v.shape, generator=draw, dtype=v.dtype)
            for name, v in reading.values.items()
        },
    )


@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "relu"])
@pytest.mark.parametrize(("dtype", "least"), [(torch.float64, 200), (torch.float32, 100)])
def test_one_example_is_exact(activation: str, dtype: torch.dtype, least: float) -> None:
    """Measured: above 300 dB in float64, above 130 dB in float32."""
    case = _images(dtype=dtype)
    result = _run(_read(case, Mlp(activation=activation).build((1, 8, 8), 10)))  # type: ignore[arg-type]
    assert float(_psnr(result.inputs, case.truth).min()) > least
    assert torch.equal(result.labels, case.labels)
    assert result.status == ("ok",) * 6 and float(result.loss.max()) < 1e-10
    assert result.inputs.dtype == dtype and not result.evaluations.any()


@pytest.mark.parametrize("where", ["type-2", "type-1", "type-0"])
def test_a_row_of_a_table_is_exact(where: str) -> None:
    case = situation(where, readings=4, kind=TABLE)
    result = _run(case.reading)
    assert float(_psnr(result.inputs, case.truth).min()) > 120  # the truth is kept in float32
    assert torch.equal(result.labels, case.labels)


def test_a_normalisation_before_the_layer_is_undone() -> None:
    case = _images()
    module = nn.Sequential(Normalise((0.3,), (0.2,)), nn.Flatten(), nn.Linear(64, 20), nn.Linear(20, 10))
    assert float(_psnr(_run(_read(case, module)).inputs, case.truth).min()) > 200


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Flatten(), nn.Linear(64, 20, bias=False), nn.Linear(20, 10)),
        nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 10)),
        nn.Sequential(nn.PixelUnshuffle(2), nn.Flatten(), nn.Linear(64, 10)),
        nn.Sequential(nn.ReLU6(), nn.Tanh(), nn.Flatten(), nn.Linear(64, 10)),
        nn.Sequential(nn.Conv2d(1, 1, 3, padding=1), nn.Flatten(), nn.Linear(64, 10)),
    ],
    ids=["no bias", "pooled", "reordered", "bent", "convolution"],
)
def test_other_first_layers_are_refused(module: nn.Module) -> None:
    reading = _read(_images(), module)
    assert Analytic().refuses(reading) == "its first layer is no fully connected layer with bias"


def test_the_convolutional_net_and_unlinked_coordinates_are_refused() -> None:
    assert Analytic().refuses(situation().reading) == "its first layer is no fully connected layer with bias"
    reading = situation(kind=TABLE).reading
    assert Analytic().refuses(reading) is None
    assert "not linked" in str(Analytic().refuses(replace(reading, linked="coordinate")))


def test_noise_costs_as_many_decibels_as_it_has() -> None:
    """Measured median at noise of 0, .1, 1, 10 % of the largest value: 316, 72, 52, 31 dB."""
    case = _images(readings=8)
    reading = _read(case, Mlp().build((1, 8, 8), 10))
    level = [float(_psnr(_run(_noisy(reading, s)).inputs, case.truth).median()) for s in (1e-3, 1e-2, 1e-1)]
    assert level[0] > 65 and level[1] > 45 and level[2] > 25
    assert level == sorted(level, reverse=True)


def test_observations_under_other_weights_help_against_noise() -> None:
    """16 observations are worth 10·log10(16) = 12 dB; asked: 9."""
    case = _images()
    module = Mlp().build((1, 8, 8), 10)
    one, many = (
        _psnr(_run(_noisy(_read(case, module, tuple(range(n))), 0.03)).inputs, case.truth).mean() for n in (1, 16)
    )
    assert float(many - one) > 9


@pytest.mark.parametrize("factor", [0.25, 1e-6, -3.0, 1e9])
@pytest.mark.parametrize("batch", [1, 4])
def test_a_factor_of_the_whole_reading_changes_nothing(factor: float, batch: int) -> None:
    reading = _read(_images(batch), Mlp(activation="relu").build((1, 8, 8), 10))
    scaled = replace(reading, values={name: factor * value for name, value in reading.values.items()})
    assert torch.allclose(_run(scaled).inputs, _run(reading).inputs, rtol=0, atol=1e-9)


def test_pruned_values_are_recognised_and_left_out() -> None:
    """Half of each tensor at random set to zero: still exact, without a description of the defense."""
    case = _images()
    reading = _read(case, Mlp().build((1, 8, 8), 10))
    draw = torch.Generator().manual_seed(4)
    values = {n: v * (torch.rand(v.shape, generator=draw) < 0.5) for n, v in reading.values.items()}
    assert float(_psnr(_run(replace(reading, values=values)).inputs, case.truth).min()) > 200


@pytest.mark.parametrize(("batch", "least"), [(2, 0.95), (4, 0.9), (8, 0.4)])
def test_examples_of_a_relu_batch_that_alone_activate_a_neuron_are_exact(batch: int, least: float) -> None:
    case = _images(batch, readings=10)
    reading = _read(case, Mlp(activation="relu").build((1, 8, 8), 10))
    weights = {name: value[0] for name, value in reading.weights.items()}
    active = case.truth.flatten(2) @ weights["1.weight"].T + weights["1.bias"] > 0
    alone = (active & (active.sum(1, keepdim=True) == 1)).any(2)
    recovered = _best(_run(reading).inputs, case.truth) > 60  # measured: 293 of 294 at B = 8 above 100
    assert bool(recovered[alone].all())
    assert float(alone.double().mean()) >= least  # the test is of something


def test_two_local_steps_are_read_too() -> None:
    """Whatever the weights of the second step, the first layer's input is the example."""
    case = situation("type-1", batch=1, steps=2, readings=6, kind=TABLE)
    result = _run(case.reading)
    assert result.inputs.shape == (6, 2, 30) and bool(torch.isfinite(result.inputs).all())


def test_a_sigmoid_batch_gives_finite_mixtures() -> None:
    case = _images(4)
    result = _run(_read(case, Mlp().build((1, 8, 8), 10)))
    assert result.inputs.shape == case.truth.shape
    assert bool(torch.isfinite(result.inputs).all()) and result.status == ("ok",) * 6


def test_no_bias_gradient_gives_the_public_mean_and_a_status() -> None:
    reading = _read(_images(2), Mlp().build((1, 8, 8), 10))
    values = {name: value.clone() for name, value in reading.values.items()}
    values["1.bias"][1] = 0
    values["1.weight"][2, 0, 0, 0] = torch.nan
    result = _run(replace(reading, values=values))
    assert result.status == ("ok", "diverged", "nan", "ok", "ok", "ok")
    assert torch.equal(result.inputs[1:3], reading.public_mean.double().expand(2, 2, 1, 8, 8))
