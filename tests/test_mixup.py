"""Promise: examples mixed before their gradient are mixed as the paper says, and leak if either original comes back."""

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import beta, kstest
from tests.cells import MEMORY, mixed_cell, prepared
from torch import Tensor, nn
from torch.func import functional_call

from bench.answer import place
from bench.answer.context import Memory, RunContext
from bench.answer.originals import EITHER, other_originals
from bench.answer.readings import take_reading
from bench.answer.run import run
from bench.answer.truth import truth_from
from bench.answer.values import Attempt
from bench.answer.victims import batches_of, trained_at, truth_at
from bench.cell import AttackCell, Entry, Federated, Grants
from bench.contracts.run import check_instance
from bench.contracts.situations import setting_of
from bench.defenses.base import Context, Defense, Setting, StageTransforms, Tensors, Transform
from bench.defenses.mixup import MixNext, MixUp
from bench.federated.batches import Batches
from bench.federated.clients import local_updates, network
from bench.federated.describe import describe, untouched
from bench.federated.draws import KeyedDraws, StreamDraws
from bench.federated.pipeline import run_round
from bench.federated.stages import DrawKey, Stages, stages
from bench.points import POINTS, point
from bench.record.schema import AttackResult
from bench.registry import entries as registry
from bench.registry.mixing import mixes, mixes_alone, originals
from bench.submission import truth as checked
from bench.submission.figures import findings
from bench.trip import Reconstruction, Status

CLIENTS = (4, 0, 2)
KEY = DrawKey(seed=0, draw=0, round=0)


class Fixed:
    """Uniform draws that are all one number."""

    def __init__(self, value: float) -> None:
        self.value = value

    def uniform(self, name: str, like: Tensor) -> Tensor:
        del name
        return torch.full_like(like, self.value)

    normal = uniform


def federated(steps: int = 1, batch: int = 3) -> Federated:
    return Federated(
        algorithm="fedsgd" if steps == 1 else "fedavg", clients=12, per_round=3, steps=steps, batch=batch, rate=0.1
    )


def model() -> tuple[nn.Module, dict[str, Tensor]]:
    made = torch.Generator().manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(48, 10)).double()
    return module, {
        name: torch.randn(value.shape, generator=made, dtype=torch.float64) * 0.3
        for name, value in module.named_parameters()
    }


def batches(steps: int = 1, batch: int = 3) -> Batches:
    made = torch.Generator().manual_seed(1)
    shape = (len(CLIENTS), steps, batch)
    return Batches(
        clients=CLIENTS,
        inputs=torch.rand((*shape, 1, 6, 6), generator=made, dtype=torch.float64),
        labels=torch.randint(10, shape, generator=made),
    )


def staged(defense: Defense, setting: Federated) -> Stages:
    _, weights = model()
    return stages(defense, setting_of(setting), {name: tuple(v.shape) for name, v in weights.items()})


def shown(defense: Defense, setting: Federated, given: Batches) -> dict[str, dict[str, Tensor]]:
    module, weights = model()
    taps = run_round(module, weights, given, setting, staged(defense, setting), KEY, classes=10)
    return {at: dict(tensors) for at, tensors in taps.shown.items()}


# ------------------------------------------------------------------ the mixing


@pytest.mark.parametrize("steps", [1, 2])
def test_with_a_share_of_one_it_is_undefended_bit_for_bit(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyedDraws, "uniform", Fixed(1.0).uniform)
    setting, given = federated(steps), batches(steps)
    plain = shown(registry.instance("defenses", "none", {}), setting, given)
    for alpha in (0.2, 1.0, 8.0):
        mixed = shown(MixUp(alpha=alpha), setting, given)
        assert all(torch.equal(mixed[at][name], plain[at][name]) for at in plain for name in plain[at])


def test_the_gradient_is_that_of_the_mixture_computed_by_hand() -> None:
    """Of a linear model in float64: ∂/∂W = (p - ỹ) x̃ᵀ, p the softmax of W x̃."""
    made = torch.Generator().manual_seed(2)
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False)).double()
    weights = {"1.weight": torch.randn(3, 4, generator=made, dtype=torch.float64)}
    inputs = torch.rand((1, 1, 3, 1, 2, 2), generator=made, dtype=torch.float64)
    given = Batches(clients=(5,), inputs=inputs, labels=torch.tensor([[[2, 0, 2]]]))
    setting = federated()
    defended = stages(MixUp(), setting_of(setting), {"1.weight": (3, 4)})
    taps = run_round(module, weights, given, setting, defended, KEY, classes=3)
    draws = KeyedDraws(seed=0, fields=(0, 0, 0, "input", 0, 0), rows=tuple((5, n) for n in range(3)))
    share = draws.uniform("share", torch.empty(1, 3, dtype=torch.float64))[0]  # α = 1: λ is the draw
    expected = []
    for n in range(3):
        one, other, kept = inputs[0, 0, n].flatten(), inputs[0, 0, (n + 1) % 3].flatten(), float(share[n])
        x = kept * one + (1 - kept) * other
        y = torch.zeros(3, dtype=torch.float64)
        y[given.labels[0, 0, n]] += kept
        y[given.labels[0, 0, (n + 1) % 3]] += 1 - kept
        p = (weights["1.weight"] @ x).softmax(0)
        expected.append(torch.outer(p - y, x))
    torch.testing.assert_close(taps.shown["example"]["1.weight"][0], expected[0], rtol=1e-12, atol=1e-14)
    mean = torch.stack(expected).mean(0)
    torch.testing.assert_close(taps.shown["client"]["1.weight"][0], mean, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_the_share_has_the_beta_law(alpha: float) -> None:
    """20 000 shares, of a fixed seed: the largest distance to Beta(α, α)'s distribution function is below .0138, which
    chance exceeds one time in a thousand (1.95/√n, Kolmogorov)."""
    count, setting = 20_000, setting_of(federated())
    x = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(count // 2, 2)[..., None]
    y = torch.nn.functional.one_hot(torch.tensor([0, 1]), 2).double().expand(count // 2, 2, 2)
    draws = StreamDraws.of(7, 0, 0, tuple(range(count // 2)), torch.device("cpu"))
    context = Context(lead=2, stage="input", round=0, step=0, setting=setting, draws=draws)
    after = MixNext(alpha=alpha).apply({"inputs": x, "targets": y}, context)
    share = torch.cat([after["inputs"][:, 0, 0], 1 - after["inputs"][:, 1, 0]])
    assert kstest(share.numpy(), beta(alpha, alpha).cdf).statistic < 1.95 / count**0.5
    torch.testing.assert_close(after["targets"][:, :, 0], after["inputs"][..., 0])  # the label's share is the input's


def test_a_batch_of_one_is_left_as_it_is() -> None:
    setting, given = federated(batch=1), batches(batch=1)
    assert MixUp().transforms(setting_of(setting)) == {}
    plain, mixed = (shown(registry.instance("defenses", name, {}), setting, given) for name in ("none", "mixup"))
    assert all(torch.equal(mixed[at][name], plain[at][name]) for at in plain for name in plain[at])
    assert untouched(staged(MixUp(), setting), point("type-2"))
    assert not untouched(staged(MixUp(), federated()), point("type-2"))
    assert [originals(mixed_cell(batch=size)) for size in (1, 2, 3)] == [1, 2, 2]


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("stacked", [True, False])
def test_training_mixes_as_a_reading_does(steps: int, stacked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws set equal, both ways through a round agree, and with a textbook loop over the mixed batch."""
    monkeypatch.setattr(KeyedDraws, "uniform", Fixed(0.3).uniform)
    setting, given = federated(steps), batches(steps)
    module, weights = model()
    if not stacked:
        monkeypatch.setattr("bench.federated.clients.stack", lambda model: None)
    defended = staged(MixUp(), setting)
    slow = run_round(module, weights, given, setting, defended, KEY, classes=10).shown["client"]
    sent, _ = local_updates(
        network(module), module, weights, given, setting, defended.of(CLIENTS), KEY, Fixed(0.3), classes=10
    )
    torch.testing.assert_close(sent, slow, rtol=1e-10, atol=1e-14)
    hard = nn.functional.one_hot(given.labels, 10).double()
    x, y = (0.3 * value + 0.7 * value.roll(-1, 2) for value in (given.inputs, hard))
    now = {name: value.clone().requires_grad_() for name, value in weights.items()}
    for step in range(steps):
        loss = nn.functional.cross_entropy(functional_call(module, now, (x[1, step],)), y[1, step])
        slopes = torch.autograd.grad(loss, list(now.values()))
        rate = setting.rate if steps > 1 else -1.0
        now = {n: (v - rate * g).detach().requires_grad_() for (n, v), g in zip(now.items(), slopes, strict=True)}
    for name, value in now.items():
        expected = weights[name] - value if steps > 1 else value - weights[name]
        torch.testing.assert_close(sent[name][1], expected.detach(), rtol=1e-10, atol=1e-13)


def test_an_observer_beside_a_training_changes_no_bit_of_it() -> None:
    setting, given = federated(2), batches(2)
    module, weights = model()

    def sent(chosen: Stages) -> dict[str, Tensor]:
        draws = StreamDraws.of(0, 0, 0, CLIENTS, torch.device("cpu"))
        return local_updates(
            network(module), module, weights, given, setting, chosen.of(CLIENTS), KEY, draws, classes=10
        )[0]

    defended = staged(MixUp(), setting)
    plain, beside, mixed = (sent(each) for each in (defended.undefended, replace(defended, states_only=True), defended))
    assert all(torch.equal(beside[name], value) for name, value in plain.items())
    assert not any(torch.equal(mixed[name], value) for name, value in plain.items())


# ------------------------------------------------------------------ contracts


def test_its_contracts_hold() -> None:
    outcomes = {one.contract.name: one for one in check_instance("defenses", MixUp())}
    assert {name for name, one in outcomes.items() if one.status == "broken"} == set()
    looked = {name for name, one in outcomes.items() if one.status == "ok"}
    assert {"originals", "acts", "readings", "keyed", "alone = in company", "draws", "description"} <= looked


@dataclass(frozen=True)
class _Shifted(Transform):
    """Mixes with another of the batch than the next, or leaves targets that are no probabilities."""

    shift: int
    factor: float = 1.0

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        del context
        return {name: self.factor * (value + value.roll(self.shift, 1)) / 2 for name, value in tensors.items()}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [(_Shifted(1), "depends on others"), (_Shifted(-1, 0.5), "no probabilities"), (_Shifted(-1), None)],
)
def test_a_mixing_that_the_truth_does_not_know_of_is_found(wrong: Transform, words: str | None) -> None:
    class Other(MixUp):
        def transforms(self, setting: Setting) -> StageTransforms:
            return {"input": (wrong,)} if setting.batch > 1 else {}

    (found,) = check_instance("defenses", Other(), only={"originals"})
    assert (found.status == "broken" and words in found.reason) if words else found.status == "ok"


def test_its_description_is_the_identity_and_never_a_likelihood() -> None:
    setting = federated()
    probe = {name: value[0] for name, value in shown(MixUp(), setting, batches())["client"].items()}
    for where in POINTS.values():
        said = describe(staged(MixUp(), setting), where, round_=0, unit=1.0, probe=probe)
        assert said is not None
        assert said.parts == () and not said.inside_steps and not said.additive
        assert said.noise.variance == 0


# ------------------------------------------------------------------ the truth, and what leaks


def of(cell: AttackCell, tmp: Path) -> Any:
    """The originals of a cell's readings, and what was trained on."""
    setup = prepared(cell, RunContext(run=tmp), MEMORY)
    truth = truth_from(cell, setup.source)
    return SimpleNamespace(
        originals=(truth.examples, *other_originals(cell, truth)),
        whole=truth_at(truth.victims, point("type-1")),
        trained=trained_at(cell, setup, truth.victims, truth.point),
    )


def test_what_is_mixed_at_type_2_are_the_two_that_are_scored(tmp_path: Path) -> None:
    found = of(mixed_cell(), tmp_path)
    first, second = found.originals
    assert torch.equal(first.indices[:, 0], found.whole.indices[:, 0])
    assert torch.equal(second.indices[:, 0], found.whole.indices[:, 1])
    a, b, mixed = (value.inputs.flatten(1) for value in (first, second, found.trained))
    share = ((mixed - b) * (a - b)).sum(1) / (a - b).square().sum(1)
    torch.testing.assert_close(mixed, share[:, None] * a + (1 - share)[:, None] * b, rtol=1e-5, atol=1e-6)
    assert bool((share > 0).all() and (share < 1).all())
    torch.testing.assert_close(found.trained.targets.sum(-1), torch.ones(4, 1))
    assert len(of(mixed_cell("type-1"), tmp_path).originals) == 1


def planted(cell: AttackCell, guess: Tensor, tmp: Path, monkeypatch: pytest.MonkeyPatch) -> AttackResult:
    """The result of a cell whose attack claims these examples."""
    count, examples = guess.shape[:2]
    ones = torch.ones(count, dtype=torch.int64)
    fine: Status = "ok"
    claim = Reconstruction(
        inputs=guess,
        labels=torch.full((count, examples), -1),
        loss=torch.zeros(count),
        evaluations=ones,
        outer=ones,
        restarts=ones,
        status=(fine,) * count,
    )
    monkeypatch.setattr(place, "reconstruct", lambda *args: Attempt(reconstruction=claim))
    record = run(cell, RunContext(run=tmp), MEMORY)
    assert record.attack is not None, record.reason
    assert findings(record) == []
    source = prepared(cell, RunContext(run=tmp), MEMORY).source
    (path,) = tmp.glob(f"arrays/{record.arrays}.npz")
    with np.load(path) as arrays:
        assert list(checked._findings(cell, record.attack, source.data, dict(arrays))) == []
    return record.attack


def test_either_original_of_a_mixture_leaks_it_and_the_mixture_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading 0: the first original comes back, 1: the second, 2: half of each, 3: grey."""
    cell = mixed_cell()
    found = of(cell, tmp_path)
    first, second = (each.inputs.clone() for each in found.originals)
    half = (first + second) / 2
    result = planted(cell, torch.stack([first[0], second[1], half[2], 0 * half[3] + 0.5]), tmp_path, monkeypatch)
    assert [reading.leaked for reading in result.readings] == [True, True, False, False]
    examples = [reading.examples[0] for reading in result.readings]
    assert examples[0].psnr_db == examples[1].psnr_db == pytest.approx(120)
    assert (examples[2].psnr_db or 0) < 20
    assert [examples[n].label for n in (0, 1)] == [
        int(found.originals[0].labels[0, 0]),
        int(found.originals[1].labels[1, 0]),
    ]
    # the reading stays that of the first, so that attacks pair, and a blind guess has two to hit
    assert [reading.indices for reading in result.readings] == [
        (int(index),) for index in found.originals[0].indices[:, 0]
    ]
    summary = result.figures()
    assert summary.asr.value == 0.5
    assert summary.identification_chance == pytest.approx(2 / (summary.gallery + 1))
    assert EITHER in result.notes


def test_who_only_mixes_is_told_from_who_adds_noise_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By literal stages alone: the class of a plug-in is not loaded where its cells are scored."""
    monkeypatch.setattr(registry, "_added", {})
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "from bench.defenses.mixup import MixUp\n"
        "class Both(MixUp):\n    stages = ('input', 'client')\n"
        "class Same(MixUp):\n    pass\n"
        "DEFENSES = {'both': Both, 'same': Same}\n"
    )
    declared = registry.add_plugin(str(plugin))
    registry.drop_plugins()
    registry.declare(declared)
    names = ("mixup", "same", "both", "prune", "elsewhere")
    cells = [mixed_cell(defense=Entry(name=name)) for name in names]
    assert [mixes(cell) for cell in cells] == [True, True, True, False, False]
    assert [mixes_alone(cell) for cell in cells] == [True, True, False, False, False]
    assert not any(mixes_alone(mixed_cell(batch=1, defense=Entry(name=name))) for name in names)


def test_of_whole_batches_each_original_counts_once_in_whichever_mixture_it_came_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = mixed_cell("type-1")
    whole = of(cell, tmp_path).whole.inputs
    guess = whole.roll(-1, 1).clone()  # each mixture came back as its partner
    guess[1] = (whole[1] + whole[1].roll(-1, 0)) / 2
    guess[2] = whole[2, :1]  # all three as the first
    result = planted(cell, guess, tmp_path, monkeypatch)
    assert [sum(bool(e.success) for e in reading.examples) for reading in result.readings] == [3, 0, 1, 3]
    assert EITHER not in result.notes  # nothing is counted twice
    assert result.figures().identification_chance == pytest.approx(3 / (result.figures().gallery + 1))


def test_an_undefended_cell_is_scored_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = mixed_cell(defense=Entry(name="none"))
    found = of(cell, tmp_path)
    assert not mixes(cell) and len(found.originals) == 1 and found.trained.targets is None
    second = found.whole.inputs[:, 1:2].clone()
    result = planted(cell, second, tmp_path, monkeypatch)
    assert not any(reading.leaked for reading in result.readings)
    assert EITHER not in result.notes


def test_a_submission_that_is_scored_against_the_farther_original_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = mixed_cell()
    found = of(cell, tmp_path)
    first, second = (each.inputs.numpy() for each in found.originals)
    guess = 0.3 * first + 0.7 * second
    result = planted(cell, torch.from_numpy(guess), tmp_path, monkeypatch)
    rows = [n for n, reading in enumerate(result.readings) if not reading.leaked]
    assert rows  # the mixture itself is no leak
    source = prepared(cell, RunContext(run=tmp_path), MEMORY).source
    lie = {"truth": first, "reconstruction": guess}
    (line,) = checked._findings(cell, result, source.data, lie)
    assert line == f"reading {rows[0]}: it is scored against the farther of its mixed example's originals"
    lie["truth"] = guess
    (line,) = checked._findings(cell, result, source.data, lie)
    assert "not in the data set" in line


@pytest.mark.parametrize("where", ["type-2", "type-1"])
def test_who_knows_the_defense_finds_the_mixture_and_its_self_check_is_at_zero(where: str, tmp_path: Path) -> None:
    cell = mixed_cell(where, knowledge="adaptive", readings=2, attack=Entry(name="dlg"), evaluations=5)
    record = run(cell, RunContext(run=tmp_path), Memory())
    assert record.attack is not None, record.reason
    check = record.attack.self_check
    assert check.distance_at_truth is not None and check.distance_at_public is not None
    assert check.distance_at_truth < 1e-9 < check.distance_at_public
    assert check.recognises_truth and check.explained is None
    assert record.attack.conditions.described and record.attack.conditions.random


def test_a_black_box_attacker_mixes_a_candidate_with_a_public_example(tmp_path: Path) -> None:
    cell = mixed_cell(knowledge="black-box", attack=Entry(name="learned-inverter"), grants=Grants())
    setup = prepared(cell, RunContext(run=tmp_path), MEMORY)
    truth = truth_from(cell, setup.source)
    reading = take_reading(cell, setup, truth, batches_of(cell, setup, truth.victims, truth.point))
    assert reading.simulator is not None
    x, y = reading.public_inputs[4:6, None], reading.public_labels[4:6, None]
    first, again, other = (reading.simulator(x, y, draw) for draw in (0, 0, 1))
    alone = prepared(mixed_cell(defense=Entry(name="none")), RunContext(run=tmp_path), MEMORY)
    plain = run_round(
        alone.model,
        alone.weights,
        Batches(clients=(0, 1), inputs=x[:, None], labels=y[:, None]),
        Federated(batch=1),
        alone.stages,
        KEY,
        classes=10,
    ).shown["example"]
    for name, value in first.items():
        assert torch.equal(value, again[name]) and not torch.equal(value, other[name])
        assert not torch.allclose(value[:, 0], plain[name])
