"""Learned inversion: closed forms, what it is chosen by, and that it attacks what it has no description of."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bench import api
from bench.attacks.inverter import ridge
from bench.attacks.inverter.scaling import learn, principal
from bench.attacks.inverter.sketch import Sketch
from bench.attacks.labels.rules import listed, whole_counts
from bench.attacks.learned_inverter import LearnedInverter, simulate
from bench.contracts.situations import Situation, situation
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction

KEY = Key(seed=3)
BUDGET = Budget(evaluations=1)
PIXELS, CLASSES = 6, 3


def attack(reading: Reading, **params: Any) -> Reconstruction:
    return LearnedInverter(**params).reconstruct(reading, BUDGET, KEY)


# ------------------------------------------------------------------ kernel ridge regression


def fit(features: Tensor, targets: Tensor, kernel: ridge.Kernel, weight: float) -> ridge.Ridge:
    return next(ridge.path(features, targets, kernel, (weight,)))


@pytest.mark.parametrize("rows", [5, 40])
def test_a_linear_kernel_is_ridge_regression(rows: int) -> None:
    draw = np.random.default_rng(0)
    z, t, new = draw.normal(size=(rows, 4)), draw.normal(size=(rows, 2)), draw.normal(size=(7, 4))
    found = fit(torch.tensor(z), torch.tensor(t), ridge.Kernel(), 0.3)
    shift = 0.3 * np.mean((z**2).sum(1))
    primal = np.linalg.solve(z.T @ z + shift * np.eye(4), z.T @ (t - t.mean(0)))
    np.testing.assert_allclose(found(torch.tensor(new)), t.mean(0) + new @ primal, rtol=1e-10, atol=1e-12)


def test_a_gaussian_kernel_is_numpys() -> None:
    draw = np.random.default_rng(1)
    z, t, new = draw.normal(size=(12, 3)), draw.normal(size=(12, 1)), draw.normal(size=(4, 3))
    found = fit(torch.tensor(z), torch.tensor(t), ridge.Kernel(width=0.5), 0.1)
    apart = ((z[:, None] - z[None]) ** 2).sum(2)
    median = np.sort(apart[np.triu_indices(12, 1)])[(66 - 1) // 2]  # torch's median: the lower of two
    kernel, towards = np.exp(-0.5 * apart / median), ((new[:, None] - z[None]) ** 2).sum(2)
    weights = np.linalg.solve(kernel + 0.1 * np.eye(12), t - t.mean(0))
    expected = t.mean(0) + np.exp(-0.5 * towards / median) @ weights
    np.testing.assert_allclose(found(torch.tensor(new)), expected, rtol=1e-9)


def test_a_kernel_that_is_not_definite_gets_a_larger_ridge() -> None:
    z = torch.ones(6, 2)
    found = fit(z, torch.arange(6.0)[:, None], ridge.Kernel(), 1e-12)
    assert found.ridge > 1e-12
    assert torch.isfinite(found(z)).all()


# ------------------------------------------------------------------ features


def test_scaled_tensors_have_unit_deviation_and_equal_weight() -> None:
    draw = torch.Generator().manual_seed(4)
    vectors = torch.randn(500, 6, generator=draw, dtype=torch.float64) * torch.tensor([9, 9, 9, 9, 0.1, 0.1])
    slices = (slice(0, 4), slice(4, 6))
    alike = learn(vectors, slices, "tensor", "values")(vectors)
    torch.testing.assert_close(alike.square().sum(1).mean(), torch.tensor(1.0, dtype=torch.float64))
    shares = learn(vectors, slices, "tensor", "tensors")(vectors)
    for at in slices:
        torch.testing.assert_close(shares[:, at].square().sum(1).mean(), torch.tensor(1.0).double())
    silent = torch.cat([vectors[:, :4], torch.zeros(500, 2).double()], 1)
    assert (learn(silent, slices, "tensor", "values")(silent)[:, 4:] == 0).all()


def test_a_direction_does_not_depend_on_the_norm() -> None:
    vectors = torch.randn(50, 5, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    scaling = learn(vectors, (slice(0, 3), slice(3, 5)), "direction", "values")
    torch.testing.assert_close(scaling(7 * vectors), scaling(vectors))


def test_principal_directions_are_those_of_the_decomposition() -> None:
    draw = torch.Generator().manual_seed(6)
    low = torch.randn(80, 3, generator=draw, dtype=torch.float64) * torch.tensor([5.0, 3.0, 1.0]).double()
    data = low @ torch.linalg.qr(torch.randn(40, 3, generator=draw, dtype=torch.float64)).Q.T
    basis = principal(data, 2, KEY)
    expected = torch.linalg.svd(data, full_matrices=False).Vh[:2]
    torch.testing.assert_close((basis.T @ expected.T).abs(), torch.eye(2).double(), rtol=0, atol=1e-8)


def test_a_sketch_keeps_scalar_products_on_average_and_small_models_as_they_are() -> None:
    shapes = {"a": (3, 500), "b": (7,)}
    draw = torch.Generator().manual_seed(7)
    values = {name: torch.randn(2, *shape, generator=draw) for name, shape in shapes.items()}
    whole = Sketch.of(shapes, KEY)(values)
    assert torch.equal(whole, torch.cat([value.flatten(1) for value in values.values()], 1))
    products = []
    for seed in range(200):
        sketch = Sketch.of(shapes, Key(seed=seed), most=300)
        products.append((sketch(values) @ sketch(values).T)[0])
    found, exact = torch.stack(products).mean(0), (whole @ whole.T)[0]
    torch.testing.assert_close(found, exact, rtol=0, atol=4 * 1507 / (298 * 200) ** 0.5)


# ------------------------------------------------------------------ the attack


@dataclass(slots=True)
class Linear:
    """A simulator of a softmax model without hidden layers: the gradient at W = 0 is (1/c - y) xᵀ."""

    budget: int = 5000
    used: int = 0
    seconds: float = 0.0

    def __call__(self, inputs: Tensor, labels: Tensor, draw: int) -> dict[str, Tensor]:
        del draw
        self.used += len(inputs)
        return {"weight": linear_gradients(inputs, labels)[:, None]}


def linear_gradients(inputs: Tensor, labels: Tensor) -> Tensor:
    residual = 1 / CLASSES - nn.functional.one_hot(labels, CLASSES).to(inputs)
    return torch.einsum("rec,rep->rcp", residual, inputs) / inputs.shape[1]


def linear_reading(readings: int = 4, public: int = 200, **changes: Any) -> tuple[Reading, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(8)
    x = torch.rand(public + readings, PIXELS, generator=draw)
    y = torch.randint(CLASSES, (public + readings,), generator=draw)
    model = nn.Linear(PIXELS, CLASSES, bias=False)
    torch.nn.init.zeros_(model.weight)
    reading = api.reading(
        {"weight": linear_gradients(x[public:, None], y[public:, None])},
        model=model,
        shape=(PIXELS,),
        classes=CLASSES,
        public=x[:public],
        public_labels=y[:public],
    )
    return replace(reading, **({"simulator": Linear()} | changes)), x[public:], y[public:]


def test_the_attack_on_a_linear_model_is_numpys_kernel_regression() -> None:
    """From the notes' choice alone: the same prediction by numpy."""
    reading, truth, labels = linear_reading()
    inverter = LearnedInverter(components=0).inverter(reading, KEY)
    sketch = inverter.sketch
    simulated = simulate(reading, Linear(), sketch, 200, KEY)
    rows = len(simulated.vectors) - simulated.held
    z = inverter.choice.scaling(simulated.vectors[:rows]).double().numpy()
    new = inverter.choice.scaling(sketch({"weight": reading.values["weight"][:, 0]})).double().numpy()
    t, fitted = simulated.inputs[:rows].flatten(1).double().numpy(), inverter.choice.regression
    kernel, towards = z @ z.T, new @ z.T
    shift = fitted.ridge * np.mean((z**2).sum(1))
    if width := fitted.kernel.width:
        norms, others = (z**2).sum(1), (new**2).sum(1)
        kernel = np.exp(-width / fitted.median * (norms[:, None] + norms - 2 * kernel))
        towards = np.exp(-width / fitted.median * (others[:, None] + norms - 2 * towards))
        shift = fitted.ridge
    expected = t.mean(0) + towards @ np.linalg.solve(kernel + shift * np.eye(rows), t - t.mean(0))
    found = attack(reading, components=0)
    np.testing.assert_allclose(found.inputs.flatten(1), expected, atol=2e-3)
    assert (found.inputs[:, 0] - truth).square().mean() < 0.3 * truth.var()
    assert torch.equal(found.labels[:, 0], labels)


@pytest.fixture(scope="module")
def digits() -> Situation:
    return situation("type-2", knowledge="black-box")


def test_a_reading_gets_the_same_alone_and_in_a_batch(digits: Situation) -> None:
    together = attack(digits.reading)
    for row in range(len(digits.reading)):
        alone = attack(digits.reading.of((row,)))
        torch.testing.assert_close(alone.inputs[0], together.inputs[row], rtol=0, atol=1e-9)
        assert torch.equal(alone.labels[0], together.labels[row])


def test_it_is_nearer_than_the_public_mean_and_says_what_it_chose(digits: Situation) -> None:
    found = attack(digits.reading)
    error = (found.inputs - digits.truth).square().mean()
    assert error < 0.6 * (digits.reading.public_mean - digits.truth).square().mean()
    assert torch.equal(found.labels, digits.labels)
    assert "held-out public examples" in found.notes[0]


def test_the_truth_is_no_part_of_the_choice(digits: Situation) -> None:
    """Other victims, the same inverter."""
    other = situation("type-2", readings=1, knowledge="black-box")
    first, second = (LearnedInverter().inverter(case.reading, KEY) for case in (digits, other))
    assert torch.equal(*(each.choice.regression.coefficients for each in (first, second)))


def test_held_out_examples_stand_in_no_other_row(digits: Situation) -> None:
    batches = situation("type-1", batch=2, knowledge="black-box")
    for case in (digits, batches):
        assert case.reading.simulator is not None
        sketch = Sketch.of({k: tuple(v.shape[2:]) for k, v in case.reading.values.items()}, KEY)
        simulated = simulate(case.reading, case.reading.simulator, sketch, 112, KEY)
        rows = [{tuple(x.flatten().tolist()) for x in row} for row in simulated.inputs]
        fitted, held = set.union(*rows[: -simulated.held]), set.union(*rows[-simulated.held :])
        assert simulated.held >= 20
        assert not fitted & held


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"simulator": None}, 'knowledge = ["black-box"]'),
        ({"public_inputs": torch.rand(99, PIXELS)}, "99 are too few, at least 100"),
        ({"public_labels": torch.full((200,), -1)}, "their labels are not known"),
        ({"simulator": Linear(budget=50)}, "it can simulate 50 readings; at least 100"),
    ],
)
def test_it_refuses_in_one_line(changes: dict[str, Any], words: str) -> None:
    reading, _, _ = linear_reading(**changes)
    reason = LearnedInverter().refuses(reading)
    assert reason is not None and words in reason and "\n" not in reason


def test_labels_are_counted_by_score() -> None:
    scores = torch.tensor([[0.1, 1.9, 1.1], [3.2, -0.1, 0.2]])
    counts = torch.stack([whole_counts(row, 3) for row in scores])
    assert listed(counts).tolist() == [[1, 1, 2], [0, 0, 0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_principal_components_hold_no_rounding_error(dtype: torch.dtype) -> None:
    """Vectors of rank 5 have five directions; a change of the last digit leaves their span."""
    draws = torch.Generator().manual_seed(0)
    parts = [torch.randn(shape, generator=draws, dtype=torch.float64) for shape in ((50, 5), (5, 80))]
    vectors = (parts[0] @ parts[1]).to(dtype)
    first, second = (principal(each, 20, Key(seed=0)) for each in (vectors, vectors * (1 + torch.finfo(dtype).eps)))
    assert first.shape == (80, 5) and first.dtype == dtype
    torch.testing.assert_close(first @ first.T, second @ second.T, rtol=0, atol=100 * torch.finfo(dtype).eps)
