"""Promise: a set of candidates weighs what its examples would weigh in any attack, whichever short cut is taken."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.cells import named_cells
from torch import Tensor

from bench.answer.context import Memory, RunContext
from bench.answer.observation import draw_and_observe
from bench.attacks.candidates import combination
from bench.attacks.candidates.exchange import Pool, _search, pool_of
from bench.attacks.objective.distance import Distance
from bench.attacks.objective.mismatch import Mismatch, by_likelihood, observations
from bench.cell import AttackCell
from bench.gradients import one_hot
from bench.trip import Reading

CLOSE = 2e-3  # relative: single precision, and sums in another order


def pool(cell: AttackCell, run: Path) -> tuple[Pool, list[dict[str, Tensor]]]:
    """All candidates of the cell's first reading, and its observations."""
    reading: Reading = draw_and_observe(cell, RunContext(run=run), Memory()).reading
    assert reading.gallery_labels is not None
    seen = [{name: value[:1] for name, value in each.items()} for each in observations(reading)]
    distance = by_likelihood(Distance(kind="l2"), reading)
    mismatch = Mismatch(reading=reading, distance=distance, exact=True)
    return pool_of(mismatch, seen, torch.arange(len(reading.gallery_labels))), seen


@pytest.mark.parametrize(
    ("defense", "where", "adds_up"),
    [
        ('{ name = "prune", at = "example", share = 0.9 }', "type-1", True),  # messages add up
        ('{ name = "sign", at = "client" }', "type-1", False),  # all follows from the mean gradient
        ('{ name = "terngrad", at = "client" }', "type-1", False),  # with a law of its own
        ('{ name = "sign", at = "client" }', "aggregate", True),
    ],
)
def test_losses_are_those_of_the_examples_whole(tmp_path: Path, defense: str, where: str, adds_up: bool) -> None:
    batch = 1 if where == "aggregate" else 3
    every = named_cells(tmp_path, defense=defense, batch=batch, labels=True, where=where, per_round=3, readings=2)
    cell = next(cell for cell in every if cell.knowledge == "adaptive")
    one, seen = pool(cell, tmp_path)
    chosen, others = torch.tensor([0, 7, 21]), torch.arange(30, 40)
    assert one.adds_up(chosen) == adds_up
    sets = chosen.repeat(len(others), 1)
    sets[:, 1] = others
    reading = one.mismatch.reading
    assert reading.gallery_inputs is not None and reading.gallery_labels is not None
    many = [{name: value.expand(len(sets), *value.shape[1:]) for name, value in each.items()} for each in seen]
    with torch.no_grad():
        whole = one.mismatch(
            many,
            reading.gallery_inputs[sets],
            one_hot(reading.gallery_labels[sets], reading.classes, torch.float32),
            differentiable=False,
        )
    torch.testing.assert_close(one.losses(chosen, 1, others).float(), whole, rtol=CLOSE, atol=1e-6)
    if adds_up:
        torch.testing.assert_close(one.separate().losses(chosen, 1, others).float(), whole, rtol=CLOSE, atol=1e-6)


def test_a_search_past_its_time_ends_with_its_start(tmp_path: Path) -> None:
    every = named_cells(tmp_path, defense='{ name = "none" }', batch=3, labels=True, where="type-1", readings=2)
    one, _ = pool(next(iter(every)), tmp_path)
    start, options = torch.tensor([0, 7, 21]), [torch.arange(len(one.members))] * 3
    draws = np.random.default_rng(0)
    assert torch.equal(_search(one, [start], options, draws, until=0.0), start)
    found = _search(one, [start], options, draws, until=math.inf)
    assert one.losses(found, 0, found[:1]) < one.losses(start, 0, start[:1])


def test_candidates_with_equal_gradients_are_told_apart_from_the_others() -> None:
    """Ten gradients, each of three candidates: the Gram matrix has rank 10, and rounding makes it indefinite."""
    gradients = torch.randn(10, 400, generator=torch.Generator().manual_seed(0)).repeat(3, 1)
    scores = combination.scores(combination.Basis.of(gradients), gradients[[3, 7]].mean(0), 2)
    assert {int(at) % 10 for at in scores.topk(2).indices} == {3, 7}


def test_what_no_candidate_explains_ranks_the_others() -> None:
    """Beside those that are named, each has a rank in [0, 1)."""
    gradients = torch.eye(6) + 0.01
    scores = combination.scores(combination.Basis.of(gradients), gradients[[0, 1]].mean(0), 2)
    assert sorted(scores.topk(2).indices.tolist()) == [0, 1]
    assert bool(((scores[2:] >= 0) & (scores[2:] < 1)).all()) and len(scores[2:].unique()) == 4
