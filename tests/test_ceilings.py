"""Promise: the linear-Gaussian reference is the error of the posterior mean where the gradient is linear."""

from dataclasses import replace
from pathlib import Path

import torch
from tests.cells import answer
from tests.linear import CLASSES, VALUES, linear_reading
from tests.records import CELL

from bench.attacks.search.space import public_space
from bench.ceilings.linear_gaussian import mean_squared_errors
from bench.cell import AttackCell
from bench.federated.describe import Composition
from bench.leaderboard.board import board
from bench.leaderboard.forms import markdown
from bench.matrix.expand import expand
from bench.matrix.read import read
from bench.points import point
from bench.sweep.plan import Resolver

DRAWS = 20_000


def test_the_reference_is_the_mean_error_over_draws_of_the_noise() -> None:
    variance = 0.02
    reading, truth = linear_reading(variance)
    assert reading.labels is not None
    labels = reading.labels[:, 0]
    errors = mean_squared_errors(reading, truth, labels)
    assert errors is not None
    space = public_space(reading)
    zero, eye = torch.zeros(VALUES, dtype=torch.float64), torch.eye(VALUES, dtype=torch.float64)
    a = (space.inputs(eye) - space.inputs(zero)).T
    mean, precision = space.inputs(zero), torch.linalg.inv(a @ a.T)
    draw = torch.Generator().manual_seed(0)
    for n, label in enumerate(labels.tolist()):
        error = torch.full((CLASSES,), 1 / CLASSES, dtype=torch.float64)
        error[label] -= 1
        x = truth[n].double()
        noise = torch.randn(DRAWS, CLASSES, VALUES, generator=draw, dtype=torch.float64)
        seen = error[:, None] * x + variance**0.5 * noise
        right = torch.einsum("dcv,c->dv", seen, error) / variance + precision @ mean
        found = torch.linalg.solve(error.square().sum() / variance * eye + precision, right.T).T
        squares = (found - x).square().mean(1)
        stated = 5 * float(squares.std()) / DRAWS**0.5  # five standard errors
        assert abs(float(squares.mean() - errors[n])) < stated


def test_it_is_none_where_it_has_no_meaning() -> None:
    reading, truth = linear_reading(0.02)
    labels = torch.zeros(len(reading), dtype=torch.long)
    assert reading.description is not None
    noise = reading.description.noise
    silent, bounded = (replace(noise, variance=0.0), replace(noise, bound=True))
    others = [
        replace(reading, description=None),
        *(replace(reading, description=Composition(parts=(), contexts={}, noise=n)) for n in (silent, bounded)),
        replace(reading, batch=2, point=point("type-1")),
        replace(reading, steps=2),
        replace(reading, rounds=(0, 1)),
    ]
    for other in others:
        assert mean_squared_errors(other, truth, labels) is None


def test_a_cell_that_asks_for_it_has_it_beside_its_attack(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text(
        """title = "reference"
readings = 10
evaluations = 30
[axes]
dataset = ["digits"]
model = ["dlg-lenet"]
attack = ["map"]
knowledge = ["plain", "adaptive"]
grants = [["labels"]]
point = ["type-2"]
defense = ["none", { name = "gaussian", at = "example", variance = 1e-3 }]
reference = [false, true]
"""
    )
    answered = [answer(item.cell, tmp_path) for item in expand(read(path), Resolver(None).data)]
    figures = {}
    for record in answered:
        assert isinstance(record.cell, AttackCell) and record.attack is not None
        key = record.cell.defense.name, record.cell.knowledge, record.cell.reference
        figures[key] = record.attack.reference_db
    wanted = figures.pop(("gaussian", "adaptive", True))
    assert wanted is not None and 15 < wanted < 40
    assert set(figures.values()) == {None}  # without noise, without its law, not asked for
    (row,) = [row for row in board(answered) if row.defense != "none"]
    assert row.points["type-2"].reference_db == wanted
    assert f"linear-Gaussian {wanted:.0f} dB" in markdown.board([row])


def test_cells_that_do_not_ask_for_it_keep_their_ids() -> None:
    assert "reference" not in CELL.canonical()
    assert CELL.model_copy(update={"reference": True}).id != CELL.id
