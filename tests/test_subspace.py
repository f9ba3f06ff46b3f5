"""Matching inside the row space: tables exactly, clipping, several starts within the budget, what it leaves alone."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bench.attacks.first_layer.certificate import Upper
from bench.attacks.first_layer.layer import first_layer, row_space, table
from bench.attacks.objective.mismatch import observations
from bench.attacks.solvers.levenberg import least_squares
from bench.attacks.subspace import Subspace, _Problem
from bench.contracts.situations import Situation, situation
from bench.gradients import example_gradients, one_hot
from bench.kinds.tables import TABLE
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction


def run(reading: Reading, evaluations: int = 400, **options: object) -> Reconstruction:
    attack = Subspace(**options)  # type: ignore[arg-type]
    return attack.reconstruct(reading, Budget(evaluations=evaluations), Key(seed=1))


def farthest(inputs: Tensor, truth: Tensor) -> float:
    """The largest error of any value of any example, against the nearest reconstruction."""
    return float((inputs[:, :, None] - truth[:, None]).abs().amax(3).min(1).values.max())


def problem_of(case: Situation, factors: bool = False) -> _Problem:
    """The first reading's."""
    layer, observed = first_layer(case.reading), observations(case.reading)
    assert layer is not None
    space = row_space(layer, table(layer, observed, 0), case.reading.examples)
    return _Problem(
        space=space,
        upper=Upper.of(case.reading, layer),
        examples=case.reading.examples,
        factors=factors,
        observed={name: value[0] for name, value in observed[0].items()},
    )


def test_rows_of_a_table_are_exact_and_certain() -> None:
    """Float64: only the truth, kept in float32, bounds it."""
    case = situation("type-1", batch=3, readings=2, kind=TABLE)
    result = run(case.reading)
    assert farthest(result.inputs, case.truth) < 1e-5
    assert result.certificate is not None and result.certificate.tolist() == [1.0, 1.0]
    assert torch.equal(result.labels.sort(1).values, case.labels.sort(1).values)
    assert int(result.evaluations.max()) <= 400 and result.status == ("ok", "ok")


@pytest.mark.slow
def test_eight_rows_of_a_table_are_exact() -> None:
    case = situation("type-1", batch=8, readings=2, kind=TABLE)
    result = run(case.reading, evaluations=1000)
    assert farthest(result.inputs, case.truth) < 1e-3
    assert result.certificate is not None and result.certificate.tolist() == [1.0, 1.0]


def test_the_truth_leaves_nothing_to_explain() -> None:
    case = situation("type-1", batch=3, kind=TABLE)
    problem = problem_of(case)
    x = problem.project(case.truth[0].double().flatten(1))
    targets = one_hot(case.labels[0], case.reading.classes, torch.float64)
    assert float(problem.residuals(x[None], targets[None]).abs().max()) < 1e-6
    assert torch.allclose(problem.mixing(x) @ problem.space.right, case.truth[0].double().flatten(1), atol=1e-6)


@pytest.mark.parametrize("factors", [False, True])
def test_the_jacobian_is_that_of_the_residuals(factors: bool) -> None:
    case = situation("type-1", batch=3, kind=TABLE)
    problem = problem_of(case, factors)
    targets = one_hot(case.labels[:1], case.reading.classes, torch.float64)
    x = problem.project(case.truth[1].double().flatten(1))[None] + 0.1
    plain = torch.autograd.functional.jacobian(lambda y: problem.residuals(y[None], targets)[0], x[0])
    assert torch.allclose(problem.jacobian(x, targets)[0], plain, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_clipped_examples_are_exact_where_factors_are_free() -> None:
    """Each example's gradient shortened to the same length, as Fed-CDP does."""
    case = situation("type-1", batch=3, readings=1, kind=TABLE)
    weights = {name: value[0] for name, value in case.reading.weights.items()}
    targets = one_hot(case.labels[0], case.reading.classes, torch.float64)
    each = example_gradients(case.reading.model, weights, case.truth[0].double(), targets)
    norm = torch.stack([value.flatten(1).square().sum(1) for value in each.values()]).sum(0).sqrt()
    values = {name: torch.einsum("n,n...->...", 0.1 / norm, value) / 3 for name, value in each.items()}
    shown = {name: value.detach()[None, None] for name, value in values.items()}
    clipped = replace(case.reading, values=shown, unit=1.0, labels=case.labels)
    assert farthest(run(clipped, 400, unknown_scale=True).inputs, case.truth) < 0.05
    assert farthest(run(clipped).inputs, case.truth) > 0.1


def test_a_reading_alone_gets_what_it_gets_in_company() -> None:
    case = situation("type-1", batch=3, readings=2, kind=TABLE)
    alone, both = run(case.reading.of((1,)), 60), run(case.reading, 60)
    assert torch.allclose(alone.inputs[0], both.inputs[1], atol=1e-9)


def test_local_steps_are_not_matched() -> None:
    result = run(situation("type-1", batch=2, steps=2, kind=TABLE).reading)
    assert int(result.evaluations.max()) <= 1 and bool(torch.isfinite(result.inputs).all())


def test_least_squares_solves_rosenbrock_from_several_starts() -> None:
    def residuals(x: Tensor, at: Tensor) -> Tensor:
        del at
        return torch.stack([10 * (x[:, 1] - x[:, 0] ** 2), 1 - x[:, 0]], 1)

    def jacobian(x: Tensor, at: Tensor) -> Tensor:
        return torch.stack([torch.autograd.functional.jacobian(lambda y: residuals(y[None], at)[0], row) for row in x])

    starts = torch.tensor([[-1.2, 1.0], [3.0, -2.0]], dtype=torch.float64)
    fit = least_squares(residuals, jacobian, starts, evaluations=100, stop=1e-24)
    best = int(fit.loss.argmin())
    assert torch.allclose(fit.x[best], torch.ones(2, dtype=torch.float64), atol=1e-9)
    assert int(fit.evaluations.max()) <= 100
    few = least_squares(residuals, jacobian, starts, evaluations=7, stop=0.0)
    assert int(few.evaluations.min()) >= 6 and int(few.evaluations.max()) <= 7
