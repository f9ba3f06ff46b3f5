"""A server that chooses the weights anew in each round, on the clients' same batches."""

from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import binom
from tests.cells import MEMORY, RESOLVER, attack, entry
from torch import Tensor

from bench.answer.context import Memory, RunContext
from bench.answer.observation import draw_and_observe
from bench.answer.run import run
from bench.answer.setup import load_data
from bench.answer.truth import draw_truth
from bench.attacks.bins import Bins
from bench.attacks.first_layer.binned import Binned
from bench.attacks.first_layer.ratios import by_agreement
from bench.attacks.last_layer.intervals import Intervals
from bench.attacks.objective.mismatch import by_weights
from bench.cell import AttackCell, Federated, Grants
from bench.gradients import group_gradients, one_hot
from bench.matrix.feasible import impossible
from bench.rng import Key
from bench.trip import Reading, Server, Tensors

ROUNDS = 4
MLP, LENET = entry("models", "mlp", hidden=(64,), activation="relu"), entry("models", "dlg-lenet")


def cell(rounds: int = ROUNDS, batch: int = 12, readings: int = 2, **changes: Any) -> AttackCell:
    return attack(
        **{
            "attack": entry("attacks", "bins"),
            "model": MLP,
            "federated": Federated(clients=20, per_round=2, batch=batch),
            "point": "type-1",
            "readings": readings,
            "grants": Grants(server="rounds", repeated_readings=rounds),
        }
        | changes
    )


def fishing(**changes: Any) -> AttackCell:
    return cell(**({"attack": entry("attacks", "fishing"), "model": LENET} | changes))


def observed(which: AttackCell, folder: Path) -> tuple[Reading, Tensor, Tensor]:
    """The readings, and the examples behind them with their labels."""
    context = RunContext(run=folder)
    truth = draw_truth(which, load_data(which, context, MEMORY), folder).examples
    return draw_and_observe(which, context, MEMORY).reading, truth.inputs, truth.labels


def of_examples(reading: Reading, inputs: Tensor, labels: Tensor, number: int) -> Tensors:
    """The mean gradients at the weights of a round, in float64: name → (reading, *shape)."""
    weights = {name: value[number].double() for name, value in reading.weights.items()}
    targets = one_hot(labels, reading.classes, torch.float64)
    return group_gradients(reading.model.double(), weights, inputs.double(), targets)


@pytest.mark.parametrize("which", [cell(), fishing()], ids=["bins", "fishing"])
def test_each_round_shows_the_same_examples_under_other_weights(tmp_path: Path, which: AttackCell) -> None:
    reading, inputs, labels = observed(which, tmp_path)
    assert len(reading.rounds) == reading.repeated_readings == ROUNDS
    for number in range(ROUNDS):
        for name, value in of_examples(reading, inputs, labels, number).items():
            gap = (reading.values[name][:, number] - value).abs().max()
            assert gap <= 1e-4 * value.abs().max() + 1e-12, (number, name)
    changed = {
        name
        for name, value in reading.weights.items()
        if all(not torch.equal(value[number], value[number - 1]) for number in range(1, ROUNDS))
    }
    assert changed == ({"7.bias"} if which.attack.name == "fishing" else {"1.weight", "1.bias", "3.weight"})


def test_the_attack_sees_the_rounds_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Reading | None] = []
    honest = Bins.craft

    def craft(self: Bins, server: Server, key: Key) -> dict[str, Tensor]:
        seen.append(server.seen)
        assert server.rounds == ROUNDS and server.finished == len(seen) - 1
        return honest(self, server, key)

    monkeypatch.setattr(Bins, "craft", craft)
    reading, inputs, _ = observed(cell(), tmp_path)
    assert seen[0] is None and len(seen) == ROUNDS
    victims = inputs.flatten(0, 1).flatten(1)
    for number, before in enumerate(seen[1:], 1):
        assert before is not None
        for name, value in reading.values.items():
            assert torch.equal(before.values[name], value[:, :number])
            assert torch.equal(before.weights[name], reading.weights[name][:number])
        assert before.labels is None and before.mates_inputs is None
        assert not (victims[:, None] == before.public_inputs.flatten(1)).all(2).any()


def test_rounds_count_in_epsilon(tmp_path: Path) -> None:
    """Chosen weights change no ε: r rounds cost as r readings of honest weights."""
    noisy = entry("defenses", "dp-sgd", clip=0.5, sigma=2.0)
    grants = (Grants(server="rounds", repeated_readings=3), Grants(repeated_readings=3), Grants(server="weights"))
    context = RunContext(run=tmp_path)
    epsilons = []
    for each in grants:
        made = draw_and_observe(cell(defense=noisy, grants=each, attack=entry("attacks", "trap")), context, MEMORY)
        epsilons.append(made.diagnosis.privacy.epsilon)
    several, repeated, once = epsilons
    assert several is not None and once is not None and several == repeated and several > once


def test_what_cannot_be_is_a_line() -> None:
    def reason(**changes: Any) -> str:
        return str(impossible(cell(**changes), RESOLVER.data("digits", {})))

    assert reason() == "None"
    assert reason(rounds=1).startswith("weights of each round need several rounds; grant repeated_readings = 2")
    candidates = Grants(server="rounds", repeated_readings=2, gallery=20)
    assert reason(attack=entry("attacks", "gallery"), grants=candidates) == (
        "gallery does not choose the weights of each of 2 rounds of a server; leave out the grant server"
    )
    assert cell().grants.words() == ["a server that chooses the weights of each of 4 rounds"]


def test_an_example_is_single_in_some_round(tmp_path: Path) -> None:
    """Share p of single examples in a round: 1 - (1 - p)^r in r rounds, for examples in independent bins."""
    single = cell(rounds=3, batch=24, readings=8, attack=entry("attacks", "bins", direction="random"))
    reading, inputs, _ = observed(single, tmp_path)
    own = []
    for part in by_weights(reading):
        binned = Binned.of(part, 0.05)
        outputs = binned.rows.outputs(inputs.flatten(0, 1).flatten(1).double())[:, binned.order]
        at = ((outputs > 0).sum(1) - 1).reshape(inputs.shape[:2])
        own.append((at[:, :, None] == at[:, None]).sum(2) == 1)
        for row in range(len(reading)):
            assert not binned.refutes(inputs[row].flatten(1).double(), row).any()
    alone = torch.stack(own)
    record = run(single, RunContext(run=tmp_path), MEMORY)
    assert record.attack is not None and record.attack.summary is not None, record.reason
    found, expected = record.attack.summary.asr.value, float(alone.any(0).float().mean())
    p = (1 - 1 / 64) ** 23
    assert abs(float(alone.float().mean()) - p) < 0.1 and abs(expected - (1 - (1 - p) ** 3)) < 0.06
    assert found >= expected - 0.02


def test_an_empty_bin_refutes_a_mixture(tmp_path: Path) -> None:
    reading, inputs, _ = observed(cell(rounds=2, attack=entry("attacks", "bins", direction="random")), tmp_path)
    binned = Binned.of(by_weights(reading)[1], 0.05)
    examples = inputs[0].flatten(1).double()
    mixtures = torch.stack([(x + y) / 2 for at, x in enumerate(examples) for y in examples[:at]])
    outputs = binned.rows.outputs(mixtures)[:, binned.order]
    bins = (outputs > 0).sum(1) - 1
    empty = ~binned.occupied[0][bins.clamp_min(0)] & (bins >= 0)
    refuted = binned.refutes(mixtures, 0)
    assert empty.float().mean() > 0.3 and not (refuted & ~empty).any() and (refuted | ~empty).float().mean() > 0.95


def test_ratios_found_twice_come_first() -> None:
    x = torch.eye(4, dtype=torch.float64)
    ratios = torch.stack([x[0], x[1], x[2], x[1] + 1e-3])
    groups, counts = by_agreement(ratios, torch.tensor([3.0, 1.0, 2.0, 1.0], dtype=torch.float64), 0.01)
    assert counts.tolist() == [2, 1, 1] and torch.allclose(groups[0], x[1] + 5e-4)


@pytest.mark.parametrize("public", ["distribution", "statistics"])
def test_an_interval_holds_the_examples_with_scores_inside(tmp_path: Path, public: Any) -> None:
    which = fishing(rounds=6, grants=Grants(server="rounds", repeated_readings=6, public=public))
    reading, inputs, labels = observed(which, tmp_path)
    chosen = int((reading.weights["7.weight"][0] != 0).any(1).nonzero()[0])
    intervals = Intervals.of(reading, "7.bias", chosen)
    model, weights = reading.model.double(), {name: value[0].double() for name, value in reading.weights.items()}
    net = {**weights, "7.bias": 0 * weights["7.bias"]}
    scores = torch.func.functional_call(model, net, (inputs.flatten(0, 1).double(),))[:, chosen]
    scores = scores.reshape(labels.shape)
    held = 0
    for number, (high, low) in enumerate(zip(intervals.thresholds, intervals.thresholds[1:], strict=False)):
        inside = (scores > low) & (scores <= high)
        assert torch.equal(intervals.counts[:, number].long(), inside.sum(1))
        held += int(inside.sum())
        for row in range(len(reading)):
            at = inside[row].nonzero()[:, 0]
            # with probability 0, an example of the class has the gradient -∇f
            expected = (
                of_examples(reading, inputs[row, at][None], torch.full((1, len(at)), chosen), 0) if len(at) else {}
            )
            for name in reading.values.keys() - {"7.weight", "7.bias"}:
                value = intervals.gradients[number][name][row]
                wanted = -expected[name][0] * len(at) / labels.shape[1] if len(at) else torch.zeros_like(value)
                assert torch.allclose(value.double(), wanted.double(), rtol=1e-3, atol=2e-3 * float(scores.std())), name
    assert held >= 3 * len(reading)


def test_the_next_threshold_leaves_the_most_examples_to_a_search() -> None:
    scores = torch.linspace(0, 1, 2001, dtype=torch.float64)

    def after(thresholds: list[float], counts: list[int], examples: int) -> float:
        edges = torch.tensor([2.0, *thresholds], dtype=torch.float64)
        known = Intervals(thresholds=edges, gradients=(), counts=torch.tensor([counts]).reshape(1, -1))
        return known.next_threshold(scores, examples, most=4)

    def solved(share: float, examples: int) -> float:
        return float(sum(k * binom.pmf(k, examples, share) for k in range(5)))

    best = max(solved(share / 1000, 64) for share in range(1, 1000))
    assert solved(1 - after([], [], 64), 64) > 0.98 * best
    assert after([], [], 3) < 0  # below all scores: all three at once
    assert 0.7 < after([0.5], [7], 30) < 0.8  # seven above .5: two halves
    assert after([0.5], [3], 30) < 0.5  # three above .5: solved


@pytest.mark.slow
def test_a_search_inverts_all_intervals(tmp_path: Path) -> None:
    record = run(fishing(rounds=8, readings=2, evaluations=150), RunContext(run=tmp_path), Memory())
    assert record.attack is not None and record.attack.summary is not None, record.reason
    assert record.attack.summary.asr.value >= 0.7
    assert all(reading.evaluations is not None and reading.evaluations <= 150 for reading in record.attack.readings)
