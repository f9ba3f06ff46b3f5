"""The best decoder: its likelihood against the law written out, its places against every candidate tried by hand."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.cells import answer, named_cells, prepared
from torch.distributions import Normal

from bench.answer.attack import attack
from bench.answer.context import Memory, RunContext
from bench.answer.decoder import decoder_places, has_likelihood
from bench.answer.readings import take_reading
from bench.answer.truth import truth_from
from bench.answer.victims import batches_of
from bench.audit import bounds
from bench.contracts.trials import context_of, trial_of
from bench.defenses.fed_alpha_cdp import FedAlphaCdp
from bench.defenses.transforms.sensitivity import SensitivityNoise
from bench.federated.draws import KeyedDraws
from bench.gradients import group_gradients, one_hot
from bench.leaderboard.board import board
from bench.record.schema import Record


@pytest.mark.parametrize("measure", ["max", "mean-of-largest"])
def test_the_likelihood_of_noise_whose_scale_is_the_candidate_s_own(measure: str) -> None:
    trial = trial_of(FedAlphaCdp(), steps=1, batch=1)
    context = context_of(trial, "example")
    noise = SensitivityNoise(multiplier=0.7, bound=4.0, measure=measure)  # type: ignore[arg-type]
    given = trial.at("example")
    observed = {name: value + 0.1 for name, value in given.items()}
    found = noise.log_density(given, observed, context)
    assert found is not None and found.shape == (3, 1)
    for row in range(3):
        largest = max(float(value[row, 0].norm()) for value in given.values())
        scale = 0.7 * (largest if measure == "max" else min(max(largest, 0.1), 32.0))
        terms = [Normal(given[n][row, 0], scale).log_prob(observed[n][row, 0]).sum() for n in given]
        count = sum(given[n][row, 0].numel() for n in given)
        constant = -count / 2 * torch.log(torch.tensor(2 * torch.pi, dtype=torch.float64))
        assert float(found[row, 0]) == pytest.approx(float(sum(terms) - constant), rel=1e-9)


def test_in_a_batch_its_scale_is_of_others_too() -> None:
    trial = trial_of(FedAlphaCdp(), steps=1, batch=3)
    given = trial.at("example")
    noise = SensitivityNoise(multiplier=0.7, bound=4.0)
    assert noise.log_density(given, given, context_of(trial, "example")) is None


def test_two_neighbours_are_told_apart_by_the_scale_of_the_noise() -> None:
    """Counterexample to Fed-αCDP's theorem 5: one step at σ = 6 has ε = .81 (δ = 1e-5) if the scale is the bound C.  A
    neighbour with half the norm has half the noise, and 1000 coordinates tell the two scales in each of 400 draws.
    """
    coordinates, draws = 1000, 400
    scale = {}
    for norm in (4.0, 2.0):
        gradient = {"weight": torch.full((draws, 1, coordinates), norm / coordinates**0.5, dtype=torch.float64)}
        rows = KeyedDraws(seed=int(norm), fields=("test",), rows=tuple((row, 0) for row in range(draws)))
        context = replace(context_of(trial_of(FedAlphaCdp(), steps=1, batch=1), "example"), draws=rows)
        released = SensitivityNoise(multiplier=6.0, bound=4.0).apply(gradient, context)["weight"]
        scale[norm] = released.square().mean(-1).sqrt()
    threshold = 6 * (4.0 * 2.0) ** 0.5
    low, high = bounds.limits(draws, 0.975)
    p, q = low[int((scale[4.0] > threshold).sum())], high[int((scale[2.0] > threshold).sum())]
    assert math.log((p - 1e-5) / q) > 4 > 4 * 0.81


@pytest.mark.parametrize("labels", [False, True])
def test_a_batch_s_decoder_is_every_candidate_tried(tmp_path: Path, labels: bool) -> None:
    """The squared distance of the reading from the mean gradient of candidate and mates, written out."""
    cell = named_cells(
        tmp_path, defense='{ name = "gaussian", at = "client", variance = 1e-2 }', batch=3, labels=labels
    )[-1]
    setup = prepared(cell, RunContext(run=tmp_path), Memory())
    drawn = truth_from(cell, setup.source)
    truth, gallery = drawn.examples, drawn.gallery
    assert gallery is not None
    reading = take_reading(cell, setup, drawn, batches_of(cell, setup, drawn.victims, drawn.point))
    found = decoder_places(reading, truth, gallery)
    expected = []
    for row in range(len(reading)):
        own = int(gallery.positions[row, 0])
        distances = {}
        for number in range(len(gallery.labels)):
            alike = int(gallery.labels[number]) == int(gallery.labels[own]) or not labels
            if not alike or number in gallery.positions[row, 1:].tolist():
                continue
            inputs = torch.cat([gallery.inputs[number][None], truth.inputs[row, 1:]])[None]
            targets = one_hot(torch.cat([gallery.labels[number][None], truth.labels[row, 1:]])[None], 10, torch.float32)
            mean = group_gradients(setup.model, setup.weights, inputs, targets)
            distances[number] = sum(
                float((mean[n][0] - reading.values[n][row, 0] / reading.unit).square().sum()) for n in mean
            )
        expected.append(sum(value < distances[own] for value in distances.values()))
    assert found is not None and list(found) == expected
    assert max(expected) > 0  # the noise is large enough to matter


@pytest.mark.parametrize(
    ("defense", "batch", "where", "exact"),
    [
        ('{ name = "gaussian", at = "client", variance = 1e-2 }', 3, "type-1", True),
        ('{ name = "fed-cdp", clip = 4.0, sigma = 0.5 }', 3, "type-1", True),
        ('{ name = "ldp-fl", sending = "named" }', 3, "type-1", True),
        ('{ name = "ldp-fl", sending = "named" }', 1, "type-1", True),
        ('{ name = "fed-alpha-cdp", clip = 4.0, sigma = 6.0 }', 1, "type-2", True),
        ('{ name = "fed-alpha-cdp", clip = 4.0, sigma = 6.0 }', 3, "type-1", False),
        ('{ name = "prune", at = "client" }', 3, "type-1", False),
        ('{ name = "random-prune", at = "client" }', 1, "type-1", False),
    ],
)
def test_where_there_is_a_decoder(tmp_path: Path, defense: str, batch: int, where: str, exact: bool) -> None:
    plain, adaptive = named_cells(tmp_path, defense=defense, batch=batch, where=where, readings=2)
    for cell, wanted in ((plain, False), (adaptive, exact)):
        result, _ = attack(cell, RunContext(run=tmp_path), Memory())
        assert result.conditions.exact == wanted
        places = [[example.place for example in reading.examples] for reading in result.readings]
        if batch > 1:
            assert all((each[0] is not None) == wanted and each[1:] == [None] * 2 for each in places)


def test_nobody_names_more_of_a_batch_than_its_decoder(tmp_path: Path) -> None:
    defense = '{ name = "fed-cdp", clip = 4.0, sigma = 0.5 }'
    records: list[Record] = [
        answer(cell, tmp_path) for cell in named_cells(tmp_path, defense=defense, batch=3, readings=16)
    ]
    (row,) = board(records)
    named = row.points["type-1"].named
    assert named is not None and named.here is not None
    assert named.interval[0] <= named.here < 1


def test_without_a_description_nobody_has_a_likelihood(tmp_path: Path) -> None:
    cell = named_cells(tmp_path, batch=3)[0]
    setup = prepared(cell, RunContext(run=tmp_path), Memory())
    drawn = truth_from(cell, setup.source)
    reading = take_reading(cell, setup, drawn, batches_of(cell, setup, drawn.victims, drawn.point))
    assert not has_likelihood(reading)
