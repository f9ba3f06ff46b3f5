"""Promise: an attacker combines a client's updates from several rounds, each under its round's weights."""

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from tests.cells import MEMORY, attack, entry, training

from bench.answer.attack import attack as attacked
from bench.answer.context import RunContext
from bench.answer.observation import draw_and_observe
from bench.answer.run import run as run_cell
from bench.attacks.candidates.naming import most_likely
from bench.attacks.candidates.single import likelihoods
from bench.attacks.objective.mismatch import by_round
from bench.attacks.objective.rescale import rescaled
from bench.cell import AttackCell, CheckpointWeights, Entry, Federated, Grants, TrainingCell
from bench.errors import NotApplicable
from bench.federated import replay
from bench.federated.training import Progress, TrainingJob, train
from bench.gradients import group_gradients, one_hot
from bench.record.checkpoints import checkpoint_path, read_weights
from bench.record.store import write
from bench.rng import Key
from bench.sweep.bundle import inputs
from bench.trip import Budget, Noise, Reading

ROUNDS = (1, 3, 5)
VARIANCE = 0.02
SETTING = Federated(clients=12, per_round=3, batch=4, client_examples=4, rate=2.0)


def trained(run: Path, defense: Entry) -> TrainingCell:
    cell = training(defense=defense, federated=SETTING, rounds=6, checkpoints=ROUNDS, model=entry("models", "mlp"))
    write(run, run_cell(cell, RunContext(run=run), MEMORY))
    return cell


def naming(defense: Entry, of: TrainingCell, *rounds: int, **changed: Any) -> AttackCell:
    fields: dict[str, Any] = {
        "defense": defense,
        "federated": SETTING,
        "attack": entry("attacks", "gallery"),
        "knowledge": "adaptive",
        "grants": Grants(labels=True, mates=True, gallery=60),
        "point": "type-1",
        "readings": 6,
    }
    weights = CheckpointWeights(training=of.id, round=rounds[0], further=rounds[1:])
    return attack(weights, **(fields | changed))


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunContext, Entry, TrainingCell]:
    run, defense = tmp_path_factory.mktemp("noisy"), entry("defenses", "gaussian", at="client", variance=VARIANCE)
    return RunContext(run=run), defense, trained(run, defense)


def reading_of(cell: AttackCell, context: RunContext) -> Reading:
    return draw_and_observe(cell, context, MEMORY).reading


def test_each_observation_has_the_weights_and_the_noise_of_its_round(
    noisy: tuple[RunContext, Entry, TrainingCell],
) -> None:
    context, defense, of = noisy
    reading = reading_of(naming(defense, of, *ROUNDS), context)
    assert reading.rounds == ROUNDS and len(reading.descriptions) == len(ROUNDS)
    for at, round_ in enumerate(ROUNDS):
        saved = read_weights(checkpoint_path(context.run, of.id, round_))
        assert all(torch.equal(value[at], saved[name]) for name, value in reading.weights.items())
    single = reading_of(naming(defense, of, ROUNDS[0]), context)
    assert single.rounds == ROUNDS[:1] and not single.descriptions
    for name, value in single.values.items():
        assert torch.equal(reading.values[name][:, :1], value)


def log_likelihoods(reading: Reading, variances: tuple[float, ...]) -> torch.Tensor:
    """A float64 oracle: squared distances of observed and simulated means, over twice each round's variance."""
    assert reading.gallery_inputs is not None and reading.gallery_labels is not None
    assert reading.mates_inputs is not None and reading.mates_labels is not None
    net = copy.deepcopy(reading.model).double()
    x, y = reading.gallery_inputs.double()[:, None], reading.gallery_labels[:, None]
    total = torch.zeros(len(reading), len(x), dtype=torch.float64)
    for at, variance in enumerate(variances):
        weights = {name: value[at].double() for name, value in reading.weights.items()}
        own = group_gradients(net, weights, x, one_hot(y, reading.classes, torch.float64))
        for row in range(len(reading)):
            mates = reading.mates_inputs[row].double()[None]
            targets = one_hot(reading.mates_labels[row][None], reading.classes, torch.float64)
            rest = group_gradients(net, weights, mates, targets)
            for name, value in own.items():
                mean = (value + 3 * rest[name]) / 4
                gap = (mean - reading.values[name][row, at].double()).flatten(1)
                total[row] -= gap.square().sum(1) / (2 * variance)
    return total


@pytest.mark.parametrize("factors", [(1.0, 1.0, 1.0), (1.0, 100.0, 0.01)])
def test_scores_are_the_log_likelihoods_of_all_rounds(
    noisy: tuple[RunContext, Entry, TrainingCell], factors: tuple[float, ...]
) -> None:
    """A round with less noise has more weight."""
    context, defense, of = noisy
    reading = reading_of(naming(defense, of, *ROUNDS), context)
    variances = tuple(factor * VARIANCE for factor in factors)
    stated = tuple(
        replace(each, noise=Noise(variance=variance))  # type: ignore[type-var]
        for each, variance in zip(reading.descriptions, variances, strict=True)
    )
    reading = replace(reading, descriptions=stated)
    _, scores = most_likely(reading, Budget(evaluations=1), Key(seed=0))
    expected = log_likelihoods(reading, variances) / len(ROUNDS)
    assert reading.labels is not None and reading.gallery_labels is not None
    for row in range(len(reading)):
        rivals = torch.isfinite(scores[row])
        ours, oracle = scores[row][rivals].double(), expected[row][rivals]
        torch.testing.assert_close(ours - ours[0], oracle - oracle[0], rtol=1e-3, atol=1e-2 * float(oracle.std()))


def test_more_rounds_name_more(noisy: tuple[RunContext, Entry, TrainingCell]) -> None:
    """Under ten times the noise, of 48 examples: all rounds together name more than a round in the mean."""
    context, _, of = noisy
    louder = entry("defenses", "gaussian", at="client", variance=0.2)

    def named(*rounds: int) -> float:
        cells = [naming(louder, of, *rounds, readings=12, seed=seed) for seed in range(4)]
        summaries = [attacked(cell, context, MEMORY)[0].figures() for cell in cells]
        return sum(each.naming.value for each in summaries if each.naming is not None) / len(cells)

    assert named(*ROUNDS) > sum(map(named, ROUNDS)) / len(ROUNDS) + 0.1


@pytest.mark.parametrize("name", ["quantile", "adaclip"])
def test_each_round_has_the_memory_of_the_defense(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An adapted clip: each round's description is that of the round alone. A training is replayed once."""
    params = {"at": "client", **({"correction": "none"} if name == "quantile" else {})}
    defense = entry("defenses", name, **params)
    of, context = trained(tmp_path, defense), RunContext(run=tmp_path)
    replayed: list[int] = []

    def counted(job: TrainingJob, *rest: Any) -> Progress:
        replayed.append(job.cell.rounds)
        return train(job, *rest)

    monkeypatch.setattr(replay, "train", counted)
    reading = reading_of(naming(defense, of, *ROUNDS), context)
    assert replayed == [1, 5], "the first round for the setting, then the last, which passes the third"
    observed = [{n: value[:, 0] for n, value in part.values.items()} for part in by_round(reading)]
    for part, round_, seen in zip(by_round(reading), ROUNDS, observed, strict=True):
        alone = reading_of(naming(defense, of, round_), context)
        assert part.description is not None and alone.description is not None
        assert math.isclose(part.description.noise.variance, alone.description.noise.variance)
        sent = {n: value[:, None] for n, value in seen.items()}
        ours, own = (each.description.sent(sent, seen) for each in (part, alone) if each.description is not None)
        assert all(torch.equal(ours[n], own[n]) for n in ours)
    assert replayed == [1, 5]


def test_only_distances_are_scaled() -> None:
    """Behind a mean of clients, the sums of ternary messages have log likelihoods already."""
    context, key = RunContext(run=Path()), Key(seed=0)
    for name, params, factor in (("terngrad", {}, 1.0), ("gaussian", {"at": "client", "variance": VARIANCE}, 5.0)):
        cell = attack(
            defense=entry("defenses", name, **params),
            federated=SETTING,
            attack=entry("attacks", "gallery"),
            knowledge="adaptive",
            grants=Grants(labels=True, mates=True, gallery=60),
            point="aggregate",
        )
        reading = reading_of(cell, context)
        plain, scaled = likelihoods(reading, key), likelihoods(reading, key, 5.0)
        torch.testing.assert_close(scaled, factor * plain)


def test_the_descriptions_of_a_tiny_reading_are_rescaled(noisy: tuple[RunContext, Entry, TrainingCell]) -> None:
    """Values and all descriptions are multiplied by the same factor."""
    context, defense, of = noisy
    reading = reading_of(naming(defense, of, *ROUNDS), context)
    tiny = replace(reading, values={name: 1e-12 * value for name, value in reading.values.items()})
    scaled = rescaled(tiny)
    name, value = next(iter(tiny.values.items()))
    factor = float(scaled.values[name].abs().max() / value.abs().max())
    assert factor > 1
    for ours, stated in zip(scaled.descriptions, reading.descriptions, strict=True):
        assert math.isclose(ours.noise.variance, factor**2 * stated.noise.variance, rel_tol=1e-5)


def test_the_defense_is_compared_with_the_gradient_of_each_round(noisy: tuple[RunContext, Entry, TrainingCell]) -> None:
    """Without noise the reading is the gradient in every round."""
    context, _, of = noisy
    cell = naming(entry("defenses", "none"), of, *ROUNDS)
    assert all(each == 1 for each in draw_and_observe(cell, context, MEMORY).diagnosis.cosine)


def test_an_unknown_server_or_repeated_reports_are_refused(noisy: tuple[RunContext, Entry, TrainingCell]) -> None:
    _, defense, of = noisy
    for grants in (Grants(server="weights", gallery=60), Grants(repeated_readings=2, gallery=60)):
        with pytest.raises(ValidationError, match="honest server and a single report"):
            naming(defense, of, *ROUNDS, grants=grants)


def test_other_attacks_and_unknown_mates_are_refused(noisy: tuple[RunContext, Entry, TrainingCell]) -> None:
    context, defense, of = noisy
    with pytest.raises(NotApplicable, match="no updates from several rounds of a training; take gallery"):
        attacked(naming(defense, of, *ROUNDS, attack=entry("attacks", "map")), context, MEMORY)
    with pytest.raises(NotApplicable, match="several rounds for a single unknown example; grant mates"):
        attacked(naming(defense, of, *ROUNDS, grants=Grants(labels=True, gallery=60)), context, MEMORY)


def test_a_copy_of_the_cell_elsewhere_has_all_rounds(noisy: tuple[RunContext, Entry, TrainingCell]) -> None:
    context, defense, of = noisy
    names = {Path(name).name for name in inputs(naming(defense, of, *ROUNDS), context.run)}
    assert {f"round-{round_}.safetensors" for round_ in ROUNDS} <= names


def test_a_single_round_keeps_its_id_and_rounds_ascend() -> None:
    alone = CheckpointWeights(training="a" * 64, round=2)
    assert "further" not in alone.configuration() and alone.rounds == (2,)
    assert str(alone.model_copy(update={"further": (4, 9)})) == "3 rounds from 2 to 9"
    with pytest.raises(ValidationError, match="ascending order"):
        CheckpointWeights(training="a" * 64, round=2, further=(2,))
