"""Demix: originals behind the gradient of their mixtures, which who takes these for examples does not get."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cells import MEMORY, mixed_cell, prepared

from bench.answer.context import Memory, RunContext
from bench.answer.readings import take_reading
from bench.answer.run import run
from bench.answer.truth import truth_from
from bench.answer.victims import batches_of, trained_at, truth_at
from bench.attacks.objective.mismatch import observations
from bench.attacks.search import mixtures
from bench.attacks.search.mixtures import Mixed
from bench.attacks.search.prior import NoiseModel, Prior
from bench.attacks.search.probable import mismatch_of
from bench.attacks.search.problem import MatchingProblem
from bench.attacks.search.space import public_space
from bench.cell import AttackCell, Entry, Grants
from bench.points import point
from bench.rng import Key
from bench.trip import Reading, Victims


def batch_of(**changes: Any) -> AttackCell:
    fields = {"where": "type-1", "knowledge": "adaptive", "grants": Grants(labels=True), "readings": 3}
    return mixed_cell(**{**fields, **changes})


def read(cell: AttackCell, tmp_path: Path) -> tuple[Reading, Victims, Any]:
    """The reading, its victims, and what was trained on."""
    setup = prepared(cell, RunContext(run=tmp_path), MEMORY)
    drawn = truth_from(cell, setup.source)
    reading = take_reading(cell, setup, drawn, batches_of(cell, setup, drawn.victims, drawn.point))
    return reading, drawn.victims, trained_at(cell, setup, drawn.victims, drawn.point)


def test_a_mixing_matrix_goes_with_the_examples_variables(tmp_path: Path) -> None:
    reading, *_ = read(batch_of(), tmp_path)
    inner = public_space(reading)
    space, size = Mixed(inner, 3), reading.public_mean.numel()
    u = torch.randn(2, 3, size + 3, dtype=torch.float64)
    x, energy = space.with_energy(u)
    torch.testing.assert_close(space.variables(x), u)
    torch.testing.assert_close(energy, inner.with_energy(u[..., :size])[1])
    inputs, shares = mixtures.split(x, 3)
    torch.testing.assert_close(inputs, inner.inputs(u[..., :size]))
    torch.testing.assert_close(shares.sum(-1), torch.ones(2, 3, dtype=torch.float64))
    _, first = mixtures.split(space.inputs(torch.zeros_like(u)), 3)
    assert bool((first.diagonal(dim1=-2, dim2=-1) > 0.5).all())  # each mixture is mostly of its own original


def test_at_the_truth_the_distance_is_zero(tmp_path: Path) -> None:
    """With the shares that were drawn, and the labels in the order of the originals."""
    cell = batch_of()
    reading, victims, trained = read(cell, tmp_path)
    truth = truth_at(victims, point(cell.point))
    originals, mixed = (value.double().flatten(2) for value in (truth.inputs, trained.inputs))
    matrices = torch.linalg.lstsq(originals.mT, mixed.mT).solution.mT.clamp_min(1e-30)
    torch.testing.assert_close(matrices.sum(-1), torch.ones(3, 3, dtype=torch.float64), atol=1e-5, rtol=0)
    problem = MatchingProblem(
        mismatch=mismatch_of(reading),
        observed=observations(reading),
        labels=truth.labels,
        start_kind="grey",
        prior=Prior(),
        noise=NoiseModel.of(reading, 1),
        key=Key(seed=0),
        space=Mixed(public_space(reading), 3),
        mixed=True,
    )
    assert problem.space is not None
    x = problem.space.variables(torch.cat([originals, matrices.log()], -1)).flatten(1).float()
    rows, none = torch.arange(3), torch.zeros(3, dtype=torch.int64)
    loss, gradient = problem.subset(rows, none)(x)
    assert bool((loss < 1e-6 * problem.zero_gradient_loss(rows)).all())
    away, _ = problem.subset(rows, none)(x + 0.1 * torch.randn_like(x))
    assert bool((away > 1e2 * loss).all()) and bool(gradient.isfinite().all())


@pytest.mark.slow
def test_originals_come_out_of_mixtures_that_an_attacker_who_knows_of_none_keeps(tmp_path: Path) -> None:
    """Of digits in batches of three, granted labels: the same readings, the same budget."""
    rates = {}
    for name in ("demix", "map"):
        cell = batch_of(attack=Entry(name=name), evaluations=400, readings=3)
        record = run(cell, RunContext(run=tmp_path), Memory())
        assert record.attack is not None, record.reason
        examples = [example for reading in record.attack.readings for example in reading.examples]
        rates[name] = sum(example.success for example in examples) / len(examples)
    assert rates["demix"] >= rates["map"] + 0.3, rates


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"defense": Entry(name="gaussian")}, "no mixtures to separate"),
        ({"defense": Entry(name="none")}, "no mixtures to separate"),
        ({"where": "type-2"}, "a single mixture does not determine"),
    ],
)
def test_it_is_refused_where_there_is_nothing_to_take_apart(changes: dict[str, Any], why: str, tmp_path: Path) -> None:
    record = run(batch_of(attack=Entry(name="demix"), **changes), RunContext(run=tmp_path), Memory())
    assert record.status == "n/a" and record.reason is not None and why in record.reason
