"""Fishing: a chosen last layer leaves the gradient of few examples, which a search inverts."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cells import MEMORY, attack, entry
from torch import Tensor

from bench.answer.context import RunContext
from bench.answer.observation import draw_and_observe
from bench.answer.run import run
from bench.answer.setup import load_data
from bench.answer.truth import draw_truth
from bench.attacks.fishing import Fishing
from bench.attacks.last_layer import score
from bench.attacks.last_layer.fished import fished
from bench.attacks.last_layer.score import class_score, last_layer
from bench.attacks.objective.mismatch import mean_observation, observations
from bench.cell import AttackCell, Federated, Grants
from bench.gradients import group_gradients, one_hot
from bench.rng import Key
from bench.trip import Reading

LENET = entry("models", "dlg-lenet")
HEAD = {"7.weight", "7.bias"}  # of LENET


def cell(batch: int = 8, readings: int = 6, **changes: Any) -> AttackCell:
    return attack(
        **{
            "attack": entry("attacks", "fishing"),
            "model": LENET,
            "federated": Federated(clients=60, per_round=2, batch=batch),
            "point": "type-1",
            "readings": readings,
            "grants": Grants(server="weights"),
        }
        | changes
    )


def observed(which: AttackCell, folder: Path) -> tuple[Reading, Tensor, Tensor]:
    """The readings, and the examples behind them with their labels."""
    context = RunContext(run=folder)
    truth = draw_truth(which, load_data(which, context, MEMORY), folder).examples
    return draw_and_observe(which, context, MEMORY).reading, truth.inputs, truth.labels


def active(reading: Reading, inputs: Tensor, labels: Tensor) -> tuple[Tensor, int]:
    """Which examples have a wrong loss: of the chosen class below the threshold, or others above; and the class."""
    weights = {name: value[0] for name, value in reading.weights.items()}
    chosen = int((weights["7.weight"] != 0).any(1).nonzero()[0])
    logits = torch.func.functional_call(reading.model, weights, (inputs.flatten(0, 1),)).unflatten(0, labels.shape)
    return (labels == chosen) != (logits.argmax(-1) == chosen), chosen


@pytest.mark.parametrize("public", ["distribution", "statistics"])
def test_only_wrong_examples_have_a_gradient_below_the_last_layer(tmp_path: Path, public: Any) -> None:
    """Without public labels the threshold lies above all scores: the active examples are those of the class."""
    reading, inputs, labels = observed(cell(grants=Grants(server="weights", public=public)), tmp_path)
    wrong, chosen = active(reading, inputs, labels)
    assert 0 < int(wrong.sum()) < wrong.numel() / 2
    if public == "statistics":
        assert torch.equal(wrong, labels == chosen)
    signs = torch.where(labels == chosen, -1.0, 1.0) * wrong
    assert torch.allclose(reading.values["7.bias"][:, 0, chosen], signs.mean(1), atol=1e-4)
    weights = {name: value[0] for name, value in reading.weights.items()}
    for row in range(len(reading)):
        alone = [
            group_gradients(
                reading.model,
                weights,
                inputs[row, at : at + 1][None],
                one_hot(labels[row, at : at + 1], 10, inputs.dtype)[None],
            )
            for at in wrong[row].nonzero()[:, 0]
        ]
        for name in weights.keys() - HEAD:
            of_wrong = sum((one[name][0] for one in alone), torch.zeros_like(weights[name])) / labels.shape[1]
            value = reading.values[name][row, 0]
            assert torch.allclose(value, of_wrong, rtol=1e-3, atol=1e-3 * float(value.abs().max())), name


def test_a_fished_reading_is_the_gradient_of_its_active_examples(tmp_path: Path) -> None:
    reading, inputs, labels = observed(cell(), tmp_path)
    wrong, chosen = active(reading, inputs, labels)
    last = last_layer(reading)
    assert last is not None
    counts = set()
    for row in range(len(reading)):
        count = int(wrong[row].sum())
        if not count or len({bool(each) for each in (labels[row] == chosen)[wrong[row]]}) > 1:
            continue  # none, or of both kinds
        counts.add(count)
        own = reading.of([row])
        made = fished(own, mean_observation(observations(own)), last, chosen, count)
        assert made.examples == count and made.classes == 2
        weights = {name: value[0] for name, value in made.weights.items()}
        targets = one_hot(torch.zeros(1, count, dtype=torch.long), 2, inputs.dtype)
        expected = group_gradients(made.model, weights, inputs[row][wrong[row]][None], targets)
        assert expected.keys() == made.values.keys()
        for name, value in expected.items():
            gap = (made.values[name][:, 0] - value).norm() / value.norm()
            assert gap < 1e-3, name
    assert 1 in counts


def test_the_server_leaves_about_one_active_example_in_a_batch() -> None:
    """Classes that overlap: a class alone would have 3 of 30 examples, and the true labels none."""
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(10, 16, generator=draw, dtype=torch.float64)
    labels = torch.randint(10, (8000,), generator=draw)
    features = centres[labels] + torch.randn(8000, 16, generator=draw, dtype=torch.float64)
    for batch in (4, 30):
        direction, threshold, chosen = class_score(features[:4000], labels[:4000], 10, batch, Key(seed=0))
        wrong = (labels[4000:] == chosen) == (features[4000:] @ direction < threshold)
        counts = wrong[: len(wrong) // batch * batch].reshape(-1, batch).sum(1)
        assert 0.7 <= float(counts.float().mean()) <= 1.3
        assert float((counts == 1).float().mean()) >= 0.3


def test_a_search_inverts_what_is_left(tmp_path: Path) -> None:
    record = run(cell(batch=16, evaluations=150), RunContext(run=tmp_path), MEMORY)
    assert record.attack is not None and record.attack.summary is not None, record.reason
    assert record.attack.summary.readings_leaked.value >= 0.5
    assert record.attack.summary.asr.value <= Fishing().most / 16
    assert all(reading.evaluations is not None and reading.evaluations <= 150 for reading in record.attack.readings)


def test_an_isolated_example_is_named_among_candidates(tmp_path: Path) -> None:
    which = cell(readings=12, evaluations=1, grants=Grants(server="weights", gallery=150))
    reading, inputs, labels = observed(which, tmp_path)
    wrong, _ = active(reading, inputs, labels)
    record = run(which, RunContext(run=tmp_path), MEMORY)
    single = [row for row in range(12) if int(wrong[row].sum()) == 1]
    assert single and record.attack is not None
    for row in single:
        named = [bool(example.named) for example in record.attack.readings[row].examples]
        assert named == wrong[row].tolist()


def test_readings_without_a_chosen_last_layer_are_not_applicable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    several = Federated(algorithm="fedavg", clients=60, per_round=2, batch=4, steps=2)
    record = run(cell(federated=several), RunContext(run=tmp_path), MEMORY)
    assert record.status == "n/a" and "a later local step" in str(record.reason)
    monkeypatch.setattr(Fishing, "craft", lambda self, server, key: server.weights)
    record = run(cell(), RunContext(run=tmp_path), MEMORY)
    assert record.status == "n/a" and "fishing needs the weights of its own craft" in str(record.reason)
    monkeypatch.undo()
    monkeypatch.setattr(score, "head", lambda known: None)
    record = run(cell(), RunContext(run=tmp_path), MEMORY)
    assert record.status == "n/a" and str(record.reason).startswith("its last layer is no linear layer")
