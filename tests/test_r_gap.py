"""R-GAP: exact through convolutions for one example; ranks, residuals, and the chains that it refuses."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from bench.attacks.chain import links as links_of
from bench.attacks.chain.links import Affine, links
from bench.attacks.chain.recursion import least_squares
from bench.attacks.r_gap import RGap
from bench.contracts.situations import Situation, situation
from bench.gradients import group_gradients, one_hot
from bench.kinds.tables import TABLE
from bench.models.base import Normalise
from bench.models.lenet import CplLenet, DlgLenet
from bench.models.mlp import Mlp
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction


def _run(reading: Reading) -> Reconstruction:
    return RGap().reconstruct(reading, Budget(evaluations=1), Key(seed=0))


def _case(module: nn.Module, *, seed: int = 0, dtype: torch.dtype = torch.float64, width: float = 0.5) -> Situation:
    """Random images of 1×8×8 pixels with random labels, seen through `module` with weights uniform in ±`width`."""
    case = situation("type-1", batch=1, readings=3)
    draw = torch.Generator().manual_seed(seed)
    truth = torch.rand(case.truth.shape, generator=draw, dtype=torch.float64).to(dtype)
    labels = torch.randint(10, case.labels.shape, generator=draw)
    module = module.eval().to(dtype)
    weights = {
        name: (width * (2 * torch.rand(value.shape, generator=draw, dtype=torch.float64) - 1)).to(dtype)
        for name, value in module.named_parameters()
    }
    gradient = group_gradients(module, weights, truth, one_hot(labels, 10, dtype))
    reading = replace(
        case.reading,
        model=module,
        weights={name: value[None] for name, value in weights.items()},
        values={name: value.detach()[:, None] for name, value in gradient.items()},
    )
    return replace(case, reading=reading, truth=truth, labels=labels)


def _psnr(result: Reconstruction, case: Situation) -> float:
    """Decibels of the worst reading."""
    errors = (result.inputs.double() - case.truth.double()).square().flatten(1).mean(1)
    return -10 * float(errors.max().log10())


def _leaky() -> nn.Module:
    """As the authors': convolutions and fully connected layers, leaky ReLUs, no biases."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, 1, 1, bias=False),
        nn.LeakyReLU(0.2),
        nn.Conv2d(6, 12, 3, 2, 1, bias=False),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(192, 30, bias=False),
        nn.Tanh(),
        nn.Linear(30, 10, bias=False),
    )


@pytest.mark.parametrize(("dtype", "least"), [(torch.float64, 150), (torch.float32, 80)])
@pytest.mark.parametrize(
    "module",
    [
        DlgLenet().build((1, 8, 8), 10),
        DlgLenet(activation="relu").build((1, 8, 8), 10),
        CplLenet(activation="tanh").build((1, 8, 8), 10),
        Mlp(activation="relu").build((1, 8, 8), 10),
        _leaky(),
        nn.Sequential(Normalise((0.3,), (0.2,)), nn.Sequential(nn.Conv2d(1, 4, 3), nn.Sigmoid(), nn.Conv2d(4, 4, 3)))
        .append(nn.Flatten())
        .append(nn.Linear(64, 10)),
    ],
    ids=["sigmoid", "relu", "tanh", "fully connected", "no biases", "nested"],
)
def test_one_example_is_exact(module: nn.Module, dtype: torch.dtype, least: float) -> None:
    """Measured: above 160 dB in float64, above 85 dB in float32; the chain without biases is the worst."""
    case = _case(module, dtype=dtype, width=0.3)
    assert RGap().refuses(case.reading) is None
    result = _run(case.reading)
    assert _psnr(result, case) > least
    assert torch.equal(result.labels, case.labels) and result.inputs.dtype == dtype
    assert result.status == ("ok",) * 3 and len(result.notes) == 2 and not result.evaluations.any()


def test_a_row_of_a_table_is_exact() -> None:
    case = situation("type-1", kind=TABLE)
    assert _psnr(_run(case.reading), case) > 120  # the truth is kept in float32


def test_matrices_of_a_convolution_are_the_layer_and_its_gradient() -> None:
    layer = nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)).double()
    weights = {"0.weight": layer.weight.detach(), "0.bias": layer.bias.detach()}  # type: ignore[union-attr]
    module = nn.Sequential(layer, nn.Flatten(), nn.Linear(4 * 3 * 5, 2))
    weights |= {"2.weight": torch.zeros(2, 60), "2.bias": torch.zeros(2)}
    link = links(module, weights, (3, 6, 7))[0]
    assert isinstance(link, Affine)
    draw = torch.Generator().manual_seed(0)
    x, delta = (torch.randn(size, generator=draw, dtype=torch.float64) for size in ((1, 3, 6, 7), (1, 4, 3, 5)))
    out = layer(x)
    (gradient,) = torch.autograd.grad(out, layer.weight, delta)
    assert torch.allclose(link.matrix() @ x.flatten() + link.offset(), out.detach().flatten(), atol=1e-12)
    matrix, right = link.by_gradient(delta.flatten(), gradient.flatten(1))
    assert torch.allclose(matrix @ x.flatten(), right, atol=1e-12)


def test_too_few_equations_are_named_and_the_rest_is_exact() -> None:
    """A first convolution with stride 3 and kernel 2 reads 36 of 64 pixels; the pseudo-inverse sets the others to 0."""
    module = nn.Sequential(nn.Conv2d(1, 6, 2, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(54, 10))
    case = _case(module)
    result = _run(case.reading)
    assert result.notes[-1] == "layer 0: rank 36 of 64 input values; the pseudo-inverse leaves the others at 0"
    seen = torch.arange(8) % 3 < 2
    seen = seen[:, None] & seen
    assert torch.allclose(result.inputs[..., seen], case.truth[..., seen], atol=1e-9)
    assert float(result.inputs[..., ~seen].abs().max()) < 1e-9 and float(result.loss.max()) < 1e-20


def test_least_squares_are_the_shortest_whatever_the_rank() -> None:
    draw = torch.Generator().manual_seed(1)
    for rows, columns, rank in ((30, 12, 12), (30, 12, 7), (9, 12, 9)):
        left = torch.randn(rows, rank, generator=draw, dtype=torch.float64)
        left = left @ torch.randn(rank, columns, generator=draw, dtype=torch.float64)
        right = torch.randn(rows, generator=draw, dtype=torch.float64)
        x, found = least_squares(left, right)
        assert found == rank and torch.allclose(x, torch.linalg.pinv(left, rtol=1e-10) @ right, atol=1e-9)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10)), "has MaxPool2d, which"),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(144, 10)), "has GroupNorm"),
        (nn.Sequential(nn.Conv2d(1, 10, 8), nn.Sigmoid(), nn.Flatten()), "does not end in a fully connected layer"),
        (nn.Sequential(Mlp(hidden=(8,)).build((1, 8, 8), 10)).requires_grad_(False), None),
    ],
)
def test_other_models_are_refused_in_one_line(module: nn.Module, reason: str | None) -> None:
    refused = RGap().refuses(_case(module).reading)
    assert refused is None if reason is None else reason in str(refused)


def test_a_layer_with_too_many_equations_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_of, "_LARGEST", 64 * 500)
    assert "192 input values at layer 2: more equations" in str(RGap().refuses(situation("type-1").reading))


def test_batches_steps_and_unlinked_coordinates_are_refused() -> None:
    assert RGap().refuses(situation("type-1", batch=2).reading) == "it inverts the gradient of a single example"
    reading = situation("type-1").reading
    for changed in (replace(reading, linked="coordinate"), replace(reading, rule=None, steps=2, batch=1)):
        assert "\n" not in str(RGap().refuses(changed)) and RGap().refuses(changed) is not None
    without = {name: value for name, value in reading.values.items() if name != "2.weight"}
    assert RGap().refuses(replace(reading, values=without)) == "its model does not send 2.weight"


@pytest.mark.parametrize("factor", [1e-6, 0.3, 1e6])
def test_a_factor_of_the_whole_gradient_changes_nothing_behind_a_bias(factor: float) -> None:
    reading = situation("type-1").reading
    scaled = replace(reading, values={name: factor * value for name, value in reading.values.items()})
    assert torch.allclose(_run(scaled).inputs, _run(reading).inputs, rtol=0, atol=1e-9)


def test_errors_are_status_and_noise_raises_the_loss() -> None:
    case = situation("type-1")
    values = {name: value.clone() for name, value in case.reading.values.items()}
    values["0.weight"][0] = torch.nan
    for value in values.values():
        value[1] = 0
    result = _run(replace(case.reading, values=values))
    assert result.status == ("diverged", "diverged", "ok")
    assert torch.equal(result.inputs[:2, 0], case.reading.public_mean.expand(2, 1, 8, 8))
    draw = torch.Generator().manual_seed(0)
    noisy = {
        name: value + 1e-4 * torch.randn(value.shape, generator=draw, dtype=value.dtype)
        for name, value in case.reading.values.items()
    }
    assert bool((_run(replace(case.reading, values=noisy)).loss > 1e10 * _run(case.reading).loss).all())


def test_other_weights_give_the_reading_with_the_least_residual() -> None:
    """Two rounds, of which the first is spoilt."""
    one, two = (_case(DlgLenet().build((1, 8, 8), 10), seed=0, width=width).reading for width in (0.5, 0.4))
    spoilt = {name: 1.01 * value if name == "2.weight" else value for name, value in one.values.items()}
    both = replace(
        one,
        values={name: torch.cat([spoilt[name], two.values[name]], 1) for name in spoilt},
        weights={name: torch.cat([one.weights[name], two.weights[name]]) for name in spoilt},
        rounds=(0, 1),
    )
    assert torch.equal(_run(both).inputs, _run(two).inputs)
