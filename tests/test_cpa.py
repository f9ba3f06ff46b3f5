"""The cocktail party attack: batches by independent components, and what it knows of its own success."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bench.attacks.cpa import Cpa
from bench.attacks.first_layer.certificate import Upper, Witness
from bench.attacks.first_layer.layer import first_layer, row_space, table
from bench.attacks.objective.mismatch import observations
from bench.contracts.situations import Situation, situation
from bench.gradients import example_gradients, group_gradients, one_hot
from bench.models.base import Normalise
from bench.models.mlp import Mlp
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction

EDGE = 24  # pixels


def run(reading: Reading, seed: int = 0, **options: bool) -> Reconstruction:
    return Cpa(**options).reconstruct(reading, Budget(evaluations=1), Key(seed=seed))


def leaves(count: int, seed: int) -> Tensor:
    """Pictures of overlapping rectangles, each of one grey: most neighbouring pixels are equal."""
    draw = np.random.default_rng(seed)
    pictures = np.zeros((count, 1, EDGE, EDGE))
    for picture in pictures:
        for _ in range(25):
            top, left = draw.integers(-4, EDGE - 3, 2)
            height, width = draw.integers(4, 14, 2)
            picture[0, max(top, 0) : top + height, max(left, 0) : left + width] = draw.random()
    return torch.from_numpy(pictures)


def batch(
    examples: int,
    activation: str = "relu",
    readings: int = 2,
    dtype: torch.dtype = torch.float64,
    module: nn.Module | None = None,
) -> Situation:
    """Readings of leaves by the fully connected net, without defense."""
    case = situation("type-1", batch=examples, readings=readings)
    truth = leaves(readings * examples, 1).reshape(readings, examples, 1, EDGE, EDGE).to(dtype)
    labels = torch.randint(10, (readings, examples), generator=torch.Generator().manual_seed(2))
    net = (module or Mlp(activation=activation).build((1, EDGE, EDGE), 10)).to(dtype)  # type: ignore[arg-type]
    weights = {name: value.to(dtype) for name, value in Mlp().initial(net, 0).items()}
    gradients = group_gradients(net, weights, truth, one_hot(labels, 10, dtype))
    public = leaves(300, 3).float()
    reading = replace(
        case.reading,
        model=net,
        shape=(1, EDGE, EDGE),
        public_inputs=public,
        public_mean=public.mean(0),
        public_labels=torch.full((300,), -1),
        weights={name: value[None] for name, value in weights.items()},
        values={name: value.detach()[:, None] for name, value in gradients.items()},
    )
    return replace(case, reading=reading, truth=truth, labels=labels)


def decibels(inputs: Tensor, truth: Tensor) -> Tensor:
    """Of each true example against the nearest reconstruction, (reading, example)."""
    gaps = (inputs.double()[:, :, None] - truth.double()[:, None]).square().flatten(3).mean(3)
    return -10 * gaps.min(1).values.clamp_min(1e-30).log10()


def scaled(reading: Reading, factor: float) -> Reading:
    return replace(reading, values={name: factor * value for name, value in reading.values.items()})


@pytest.mark.parametrize("activation", ["sigmoid", "relu"])
@pytest.mark.parametrize(("dtype", "least"), [(torch.float64, 100), (torch.float32, 60)])
def test_a_batch_of_sparse_pictures_is_exact(activation: str, dtype: torch.dtype, least: float) -> None:
    """Where most differences are exactly zero the likelihood's maximum is exact; labels come with it."""
    case = batch(6, activation, dtype=dtype)
    result = run(case.reading)
    assert float(decibels(result.inputs, case.truth).median()) > least
    assert torch.equal(result.labels.sort(1).values, case.labels.sort(1).values)
    assert result.status == ("ok", "ok") and result.inputs.dtype == dtype
    assert result.certificate is not None and bool((result.certificate >= 0.5).all())


def test_the_likelihood_undoes_what_decorrelation_costs() -> None:
    case = batch(24, "sigmoid")
    with_, without = (decibels(run(case.reading, refine=on).inputs, case.truth) for on in (True, False))
    assert float(with_.mean() - without.mean()) > 10
    assert float((with_ > 20).double().mean()) >= 0.95


def test_one_example_is_exact_and_certain() -> None:
    case = batch(1)
    result = run(case.reading)
    assert float(decibels(result.inputs, case.truth).min()) > 200
    assert torch.equal(result.labels, case.labels)
    assert result.certificate is not None and result.certificate.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("factor", [1e-6, -3.0, 1e9])
def test_clipping_changes_nothing(factor: float) -> None:
    case = batch(4)
    assert torch.allclose(run(scaled(case.reading, factor)).inputs, run(case.reading).inputs, atol=1e-6)


def test_a_normalisation_before_the_layer_is_undone() -> None:
    layers = (nn.Linear(EDGE**2, 60), nn.ReLU(), nn.Linear(60, 10))
    case = batch(3, module=nn.Sequential(Normalise((0.3,), (0.2,)), nn.Flatten(), *layers))
    assert float(decibels(run(case.reading).inputs, case.truth).min()) > 20


def test_a_repeated_example_is_found_once_and_mixtures_fill_up() -> None:
    case = batch(4)
    truth, labels = case.truth.clone(), case.labels.clone()
    truth[:, 1], labels[:, 1] = truth[:, 0], labels[:, 0]
    weights = {name: value[0] for name, value in case.reading.weights.items()}
    values = group_gradients(case.reading.model, weights, truth, one_hot(labels, 10, truth.dtype))
    reading = replace(case.reading, values={name: value.detach()[:, None] for name, value in values.items()})
    result = run(reading)
    assert float(decibels(result.inputs, truth).median()) > 30
    assert result.certificate is not None and float(result.certificate.max()) <= 0.75


def test_the_certificate_fails_for_mixtures_and_for_noise() -> None:
    case = batch(4)
    layer = first_layer(case.reading)
    assert layer is not None
    space = row_space(layer, table(layer, observations(case.reading), 0), 4)
    witness = Witness.of(case.reading, layer)
    mixing = space.scaled(torch.from_numpy(np.random.default_rng(0).standard_normal((4, 4))))
    assert witness.agreement(mixing @ space.right, space.deltas(mixing)).certain == 0
    truth = torch.linalg.lstsq(space.right.T, case.truth[0].flatten(1).T).solution.T
    right = witness.agreement(truth @ space.right, space.deltas(truth))
    assert right.certain == 4 and torch.allclose(right.explained, torch.ones(4, dtype=torch.float64), atol=1e-6)
    assert torch.equal(right.labels, case.labels[0])
    draw = torch.Generator().manual_seed(0)
    noisy = {
        name: value + 0.01 * torch.randn(value.shape, generator=draw, dtype=value.dtype)
        for name, value in case.reading.values.items()
    }
    lost = run(replace(case.reading, values=noisy))
    assert lost.certificate is not None and not lost.certificate.any()
    assert not (decibels(lost.inputs, case.truth) > 20).any()


def test_deltas_are_the_gradients_of_the_first_bias() -> None:
    module = nn.Sequential(
        Normalise((0.3,), (0.2,)), nn.Flatten(), nn.Linear(EDGE**2, 20), nn.Sigmoid(), nn.Linear(20, 10)
    )
    case = batch(3, module=module)
    layer = first_layer(case.reading)
    assert layer is not None
    weights = {name: value[0] for name, value in case.reading.weights.items()}
    expected = example_gradients(case.reading.model, weights, case.truth[0], one_hot(case.labels[0], 10, torch.float64))
    found = Upper.of(case.reading, layer).deltas(case.truth[0].flatten(1))
    assert torch.allclose(found[torch.arange(3), case.labels[0]], expected["2.bias"], atol=1e-12)


def test_a_model_of_one_layer_is_read_too() -> None:
    module = nn.Linear(EDGE**2, 10)
    case = batch(3, module=nn.Sequential(nn.Flatten(), module))
    assert float(decibels(run(case.reading).inputs, case.truth).min()) > 20


def test_convolutions_and_unlinked_coordinates_are_refused() -> None:
    assert Cpa().refuses(situation().reading) == "its first layer is no fully connected layer with bias"
    reading = batch(2).reading
    assert Cpa().refuses(reading) is None
    assert "not linked" in str(Cpa().refuses(replace(reading, linked="coordinate")))


def test_damaged_readings_give_the_public_mean_and_a_status() -> None:
    case = batch(2, readings=4)
    values = {name: value.clone() for name, value in case.reading.values.items()}
    values["1.bias"][1] = 0
    values["1.weight"][2, 0, 0, 0] = torch.nan
    result = run(replace(case.reading, values=values))
    assert result.status == ("ok", "diverged", "nan", "ok")
    assert torch.equal(result.inputs[1, 0].float(), case.reading.public_mean)
    assert result.certificate is not None and result.certificate[1:3].tolist() == [0.0, 0.0]
