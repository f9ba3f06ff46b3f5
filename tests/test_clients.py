"""The fast round of training is the pipeline's round: same stages, same states, same noise in law."""

import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bench.answer.context import Memory, RunContext
from bench.answer.run import run
from bench.cell import DataRef, Entry, Federated, TrainingCell
from bench.contracts.situations import data, differing, setting_of
from bench.contracts.trials import variants
from bench.defenses.base import Defense, Public, Scaling, Transform
from bench.errors import NotApplicable
from bench.federated import draws, resume
from bench.federated.batches import Batches, clients_of
from bench.federated.clients import follows_from_norms, local_updates, network
from bench.federated.draws import StreamDraws
from bench.federated.pipeline import run_round
from bench.federated.replay import states_at
from bench.federated.resume import tensors_of
from bench.federated.stages import DrawKey, Stages, stages
from bench.federated.training import Held, Progress, TrainingJob, begin, held, train
from bench.record.checkpoints import checkpoint_path, read_about, read_weights
from bench.record.schema import TrainingResult
from bench.registry import entries as registry

pytestmark = pytest.mark.long

CLIENTS = (1, 4, 7)


def by_name(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """In the order of the names, which a file does not keep."""
    return dict(sorted(tensors.items()))


class Zeros:
    """Noise without its noise: what is left must agree to rounding."""

    def normal(self, name: str, like: Tensor) -> Tensor:
        del name
        return torch.zeros_like(like)

    def uniform(self, name: str, like: Tensor) -> Tensor:
        del name
        return torch.full_like(like, 0.3)


def federated(steps: int, batch: int = 3) -> Federated:
    return Federated(
        algorithm="fedsgd" if steps == 1 else "fedavg",
        clients=12,
        per_round=3,
        steps=steps,
        batch=batch,
        rate=0.1,
        client_examples=50,
    )


@cache
def model_of(name: str = "fed-cnn") -> tuple[nn.Module, dict[str, Tensor]]:
    architecture = registry.instance("models", name, {})
    module = architecture.build((1, 16, 16), 10).eval().double()
    return module, {key: value.double() for key, value in architecture.initial(module, 0).items()}


def batches(steps: int, batch: int = 3, clients: tuple[int, ...] = CLIENTS) -> Batches:
    source = torch.Generator().manual_seed(5)
    shape = (len(clients), steps, batch)
    inputs = torch.rand((*shape, 1, 16, 16), generator=source, dtype=torch.float64)
    return Batches(clients=clients, inputs=inputs, labels=torch.randint(10, shape, generator=source))


@cache
def public() -> Public:
    """One object, by which a defense knows what it has measured."""
    module, weights = model_of()
    examples = batches(1)
    return Public(
        model=module,
        weights=weights,
        inputs=examples.inputs.flatten(0, 2),
        labels=examples.labels.flatten(),
        classes=10,
    )


def staged(defense: Defense, setting: Federated, weights: Mapping[str, Tensor]) -> Stages:
    shapes = {key: tuple(value.shape) for key, value in weights.items()}
    return stages(defense, replace(setting_of(setting), public=public()), shapes)


def choices() -> list[tuple[str, Defense, bool]]:
    """Every registered defense with each choice of each of its parameters, and whether two parameters differ from their
    defaults; the clip bounds bite."""
    found: dict[str, tuple[str, Defense, bool]] = {}
    for name in sorted(registry.names("defenses")):
        small = {"clip": 0.05} if name in ("fed-cdp", "fed-alpha-cdp", "fed-sdp", "quantile") else {}
        single = {repr(each): each for each in variants(registry.instance("defenses", name, small))}
        every = single | {repr(each): each for first in single.values() for each in variants(first)}
        found |= {key: (name, each, key not in single) for key, each in every.items()}
    return list(found.values())


@pytest.mark.parametrize(
    ("name", "defense"),
    [pytest.param(name, each, marks=[pytest.mark.slow] * pair, id=name) for name, each, pair in choices()],
)
@pytest.mark.parametrize("steps", [1, 3])
def test_the_fast_round_is_the_pipelines(
    name: str, defense: Defense, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    del name
    setting = federated(steps)
    module, weights = model_of()
    try:
        defended = staged(defense, setting, weights)
    except ValueError:
        return  # it refuses so small a setting, which its contract checks
    clients, draw_key = batches(steps), DrawKey(seed=2, draw=0, round=0)
    monkeypatch.setattr(draws.KeyedDraws, "normal", Zeros.normal)
    monkeypatch.setattr(draws.KeyedDraws, "uniform", Zeros.uniform)
    slow = run_round(module, weights, clients, setting, defended, draw_key, classes=10)
    sent, after = local_updates(
        network(module), module, weights, clients, setting, defended.of(CLIENTS), draw_key, Zeros(), classes=10
    )
    after = defended.joined((after,))
    for stage in ("client", "exchange", "server"):
        sent, after = after.apply(stage, sent, draw_key, CLIENTS, weights=weights)  # type: ignore[arg-type]
    torch.testing.assert_close(dict(sent), dict(slow.shown["server"]), rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(tensors_of(after), tensors_of(slow.stages), rtol=1e-8, atol=1e-12)


NORM_BASED = ("fed-cdp", "fed-alpha-cdp")


@pytest.mark.parametrize("name", NORM_BASED)
@pytest.mark.parametrize("noise", ["per-example", "batch", "code", "share"])
def test_noise_on_the_mean_has_the_variance_of_noise_on_each_example(name: str, noise: str) -> None:
    """One draw on the mean, and one for each example: the same mean and variance, within five standard
    errors of 3·1.5·10⁵ coordinates."""
    setting = federated(1, batch=4)
    module, weights = model_of()
    defense = registry.instance("defenses", name, {"clip": 0.05, "sigma": 2.0, "noise": noise})
    defended = staged(defense, setting, weights).of(CLIENTS)
    given, draw_key = batches(1, 4), DrawKey(seed=2, draw=0, round=0)
    assert follows_from_norms(defended)

    def drawn(fast: bool, patch: pytest.MonkeyPatch, with_noise: bool = True) -> Tensor:
        if not fast:
            patch.setattr("bench.federated.clients.follows_from_norms", lambda stages: False)
        source = StreamDraws.of(3, 0, int(fast), CLIENTS, torch.device("cpu")) if with_noise else Zeros()
        sent, _ = local_updates(
            network(module), module, weights, given, setting, defended, draw_key, source, classes=10
        )
        return torch.cat([value.flatten(1) for value in sent.values()], 1)

    with pytest.MonkeyPatch.context() as patch:
        quiet, fast = drawn(True, patch, with_noise=False), drawn(True, patch)
        slow = drawn(False, patch)
    for client in range(len(CLIENTS)):
        one, other = fast[client] - quiet[client], slow[client] - quiet[client]
        count = one.numel()
        error = 5 * (2 / count) ** 0.5
        assert abs(float(one.var() / other.var()) - 1) < 2**0.5 * error
        assert abs(float(one.mean())) < 5 * float(one.std()) / count**0.5
        assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < 5 / count**0.5


def transforms() -> list[Transform]:
    setting = setting_of(federated(1))
    items = [item for _, defense, _ in choices() for item in _accepted(defense, setting)]
    return list({repr(item): item for item in items}.values())


def _accepted(defense: Defense, setting: object) -> list[Transform]:
    try:
        return list(defense.transforms(setting).get("example", ()))  # type: ignore[arg-type]
    except ValueError:
        return []


def test_an_update_by_norms_is_the_update() -> None:
    """With unit draws `update` gives factor times gradient plus deviation, and the same next state."""
    from bench.defenses.base import Context
    from bench.defenses.transforms.rows import norms

    class Ones(Zeros):
        def normal(self, name: str, like: Tensor) -> Tensor:
            del name
            return torch.ones_like(like)

    shapes = {"a": (4, 5), "b": (6,)}
    given = {name: torch.randn(2, 3, *shape, dtype=torch.float64) for name, shape in shapes.items()}
    checked = set()
    for item in transforms():
        setting = setting_of(federated(1))
        context = Context(lead=2, stage="example", round=0, step=0, setting=setting, draws=Ones())
        state = item.initial_of(shapes, 2)
        by_norms = item.update_by_norms(norms(given, 2), state, context)
        if by_norms is None:
            continue
        checked.add(type(item).__name__)
        scaling, next_state = by_norms
        after, expected_state = item.update(given, state, context)
        assert differing(expected_state, next_state) is None
        for key, value in given.items():
            expected = value * _wide(scaling.factors.get(key, 1.0), value) + _wide(scaling.deviation, value)
            torch.testing.assert_close(after[key], expected, rtol=1e-12, atol=1e-14)
    assert {"Clip", "GaussianNoise", "SensitivityNoise", "QuantileClip"} <= checked
    assert Scaling({}).deviation == 0


def _wide(value: Tensor | float, like: Tensor) -> Tensor | float:
    return value.reshape(*value.shape, *[1] * (like.dim() - value.dim())) if isinstance(value, Tensor) else value


def course(defense: str = "fed-cdp", *, rounds: int = 4, **options: object) -> tuple[TrainingJob, Progress]:
    found = data("digits")
    params = {"sigma": 0.5} if defense != "none" else {}
    setting = Federated(algorithm="fedavg", clients=20, per_round=7, steps=3, batch=4, rate=0.1, client_examples=40)
    cell = TrainingCell(
        dataset=DataRef(name="digits", sha256=found.sha256),
        model=Entry(name="dlg-lenet", params={"width": 0.1}),
        federated=setting,
        defense=Entry(name=defense, params=params),
        rounds=rounds,
        test_every=2,
        checkpoints=(1,),
        seed=3,
    )
    architecture = registry.instance("models", "dlg-lenet", {"width": 0.1})
    module = architecture.build(found.shape, found.classes).eval()
    weights = architecture.initial(module, 3)
    of = TrainingJob(cell=cell, data=found, clients=clients_of(cell, found), model=module, **options)  # type: ignore[arg-type]
    return of, begin(of, weights, staged(registry.instance("defenses", defense, params), setting, weights))


def apart(one: Progress, other: Progress) -> float:
    return max(float((one.weights[key] - other.weights[key]).abs().max()) for key in one.weights)


def test_data_on_the_device_change_no_bit() -> None:
    of, start = course("fed-cdp")
    inputs, test = (torch.from_numpy(split.floats()) for split in (of.data.training, of.data.test))
    there = Held(inputs=inputs, labels=torch.from_numpy(of.data.training.labels), test=test)
    copied, kept = train(of, start), train(replace(of, held=there), start)
    assert apart(copied, kept) == 0 and copied.curve == kept.curve
    assert held(of.data, torch.device("cpu")) is None


@pytest.mark.parametrize("defense", ["none", "fed-cdp", pytest.param("adaclip", marks=pytest.mark.slow)])
def test_threads_change_no_bit_and_chunks_no_more_than_rounding(defense: str) -> None:
    """The bound on chunks, 2e-6 after four rounds of three steps, is single precision's."""
    whole = train(*course(defense, chunk=3))
    assert apart(whole, train(*course(defense, chunk=3, threads=2))) == 0
    for chunk in (1, 2, 7):
        assert apart(whole, train(*course(defense, chunk=chunk))) < 2e-6, chunk


@pytest.mark.parametrize("defense", ["none", "adaclip", "quantile"])
def test_a_training_that_was_cut_off_goes_on_bit_for_bit(
    defense: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of, start = course(defense)
    whole = train(of, start)
    path = resume.place(tmp_path, "a")
    half = train(of, start, lambda now: now.round < 2)
    resume.save(path, half, {"source": 1})
    again = resume.load(path, start, {"source": 1})
    assert (again.round, again.curve) == (2, half.curve)
    end = train(of, again)
    assert apart(whole, end) == 0
    assert end.curve == whole.curve
    assert list(end.checkpoints) == [1]
    # a file is read in any order
    monkeypatch.setattr(resume, "read_weights", lambda path: dict(reversed(read_weights(path).items())))
    assert apart(whole, train(of, resume.load(path, start, {"source": 1}))) == 0
    assert differing(by_name(whole.checkpoints[1]), by_name(end.checkpoints[1])) is None
    assert resume.load(path, start, {"source": 2}) is start  # other code: from the beginning
    path.write_bytes(path.read_bytes()[:100])
    assert resume.load(path, start, {"source": 1}) is start


def answered(cell: TrainingCell, context: RunContext) -> TrainingResult:
    """The result of a training cell."""
    record = run(cell, context, Memory())
    assert record.training is not None, record.reason
    return record.training


def test_a_training_stops_at_its_accuracy_and_before_its_epsilon(tmp_path: Path) -> None:
    of, _ = course("fed-cdp", rounds=12)
    context = RunContext(run=tmp_path)
    louder = Entry(name="fed-cdp", params={"sigma": 2.0})  # less privacy loss, and less of it to add up
    plain = of.cell.model_copy(update={"test_every": 1, "defense": louder})
    full = answered(plain, context)
    assert full.rounds == 12
    spent = full.privacy.by("paper")
    assert spent is not None and spent.epsilon is not None
    assert full.privacy.epsilon is not None
    assert full.privacy.absent is None
    assert spent.steps == 36
    half = full.curve[6][1]
    reached = answered(plain.model_copy(update={"until_accuracy": max(half, 0.01)}), context)
    assert reached.rounds <= 6
    assert reached.accuracy >= half
    limit = spent.epsilon * 0.8
    stopped = answered(plain.model_copy(update={"until_epsilon": limit}), context)
    assert 0 < stopped.rounds < 12
    assert (paper := stopped.privacy.by("paper")) and (paper.epsilon or 0) <= limit
    undefended = of.cell.model_copy(update={"defense": Entry(name="none"), "rounds": 1})
    bare = answered(undefended, context)
    assert bare.privacy.epsilon is None
    assert "calibrated" in (bare.privacy.absent or "")


def test_a_training_stopped_at_a_round_has_the_weights_of_a_whole_training(tmp_path: Path) -> None:
    """Also with noise that decays over all rounds (Fed-αCDP): the stop changes no earlier round."""
    of, _ = course("fed-alpha-cdp", rounds=6)
    decaying = Entry(name="fed-alpha-cdp", params={"sigma": 20.0, "decay": "linear", "final": 10.0})
    whole = of.cell.model_copy(update={"defense": decaying, "checkpoints": (3,), "test_every": 6})
    stopped = whole.model_copy(update={"until_round": 3})
    assert stopped.id != whole.id
    context = RunContext(run=tmp_path)
    full, half = answered(whole, context), answered(stopped, context)
    assert (full.rounds, half.rounds) == (6, 3)
    saved = [read_weights(checkpoint_path(tmp_path, cell.id, 3)) for cell in (whole, stopped)]
    assert saved[0].keys() == saved[1].keys()
    assert all(torch.equal(value, saved[1][name]) for name, value in saved[0].items())
    assert [round_ for round_, _ in half.curve] == [0, 3]
    spent, all_spent = half.privacy.by("paper"), full.privacy.by("paper")
    assert spent is not None and all_spent is not None and spent.steps == all_spent.steps / 2


def test_streams_of_a_round_are_apart_and_alone_as_in_company() -> None:
    cpu = torch.device("cpu")
    like = torch.zeros(3, 20000)
    together = StreamDraws.of(1, 0, 4, (2, 3, 9), cpu).normal("w", like)
    alone = StreamDraws.of(1, 0, 4, (3,), cpu).normal("w", like[:1])
    assert torch.equal(alone[0], together[1])
    later = StreamDraws.of(1, 0, 5, (2,), cpu).normal("w", like[:1])
    seen = np.corrcoef(torch.cat([together, later]).numpy())
    assert np.abs(seen - np.eye(4)).max() < 5 / 20000**0.5
    assert abs(float(together.var()) - 1) < 5 * (2 / 60000) ** 0.5
    flat = StreamDraws.of(1, 0, 4, (2, 3, 9), cpu).uniform("w", like)
    assert float(flat.min()) >= 0
    assert float(flat.max()) < 1


def test_a_state_of_the_server_inside_local_steps_is_refused() -> None:
    from bench.defenses.transforms.quantile import QuantileClip

    class Wrong(Defense):
        reference = "test"
        stages = ("example",)

        def transforms(self, setting: object) -> Mapping[str, list[Transform]]:  # type: ignore[override]
            del setting
            clip = QuantileClip(owner="server", initial_bound=1.0, multiplier=1.0, count_noise=1.0)
            return {"example": [clip]}

    with pytest.raises(ValueError, match="server's state at stage 'example'"):
        staged(Wrong(), federated(1), {"w": torch.zeros(2)})
    assert replace(DrawKey(seed=0, draw=0, round=0), step=1).step == 1


SLOWLY = """
import sys, time
from pathlib import Path
from bench.cell import TrainingCell
from bench.answer.context import Memory, RunContext
from bench.answer.run import run

def wait(progress):
    if progress.round >= 2:
        time.sleep(600)  # until it is killed

cell = TrainingCell.model_validate_json(sys.argv[1], strict=False)
run(cell, RunContext(run=Path(sys.argv[2]), save_every=0.0), Memory(), on_progress=wait)
"""


@pytest.mark.slow  # tests/test_faults.py has trainings killed at any point
def test_a_training_whose_process_is_killed_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    """A real process, killed with SIGKILL between two rounds: same curve, same checkpoints, bit for bit."""
    of, _ = course("fed-cdp")
    cell = of.cell.model_copy(update={"checkpoints": (1, 4)})
    context = RunContext(run=tmp_path / "cut", save_every=0.0)
    child = subprocess.Popen([sys.executable, "-P", "-c", SLOWLY, cell.model_dump_json(), str(context.run)])
    path = resume.place(context.run, cell.id)
    deadline = time.monotonic() + 120
    while not path.exists() or read_about(path).get("round", 0) < 2:
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    child.kill()
    child.wait()
    heard: list[int] = []
    again = run(cell, context, Memory(), on_progress=lambda progress: heard.append(progress.round))
    whole = answered(cell, RunContext(run=tmp_path / "whole"))
    assert heard == [3, 4]
    assert again.training == whole
    assert not path.exists()


@pytest.mark.parametrize("at", ["example", "client"])
@pytest.mark.parametrize("name", ["adaclip", "quantile"])
def test_a_state_is_followed_over_an_undefended_training_without_moving_it(name: str, at: str, tmp_path: Path) -> None:
    """Beside the training the defense sees its gradients and changes no bit; under its own it is its own."""
    params = {"at": at, **({"correction": "none"} if name == "quantile" else {})}
    of, start = course("none")
    defense = registry.instance("defenses", name, params)
    before = staged(defense, of.cell.federated, start.weights)
    whole = train(of, start)
    kept = {round_: tmp_path / f"{round_}.safetensors" for round_ in (1, of.cell.rounds)}
    found = states_at(of, start.weights, before, of.cell.rounds, kept, whole.weights)
    assert differing(by_name(tensors_of(before)), by_name(tensors_of(found))) is not None
    again = states_at(of, start.weights, before, of.cell.rounds, kept, whole.weights)  # read from the file
    early = train(replace(of, cell=of.cell.model_copy(update={"rounds": 1})), start)
    passed = states_at(of, start.weights, before, 1, kept, whole.weights)  # read from the file of the first replay
    alone = states_at(of, start.weights, before, 1, {1: tmp_path / "alone.safetensors"}, early.weights)
    assert differing(by_name(tensors_of(passed)), by_name(tensors_of(alone))) is None
    assert differing(by_name(tensors_of(found)), by_name(tensors_of(again))) is None
    own = replace(of, cell=of.cell.model_copy(update={"defense": Entry(name=name, params=params)}))
    under = train(own, begin(own, start.weights, before))
    same = states_at(own, start.weights, before, of.cell.rounds, {of.cell.rounds: tmp_path / "own"}, under.weights)
    assert differing(by_name(tensors_of(under.stages)), by_name(tensors_of(same))) is None
    with pytest.raises(NotApplicable, match="ends at other weights"):
        states_at(of, start.weights, before, 2, {2: tmp_path / "no"}, whole.weights)


class Residual(nn.Module):
    """No sequence of layers, and a norm with weights: by `torch.func`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(64, 16), nn.LayerNorm(16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        found = self.first(x.flatten(1))
        out: Tensor = self.last(found + torch.relu(self.norm(found)))
        return out


def test_a_model_that_is_no_stack_trains_the_same_on_threads() -> None:
    """`torch.func` swaps weights into the one module: chunks must not do that at once."""
    of, _ = course("none", chunk=1)
    torch.manual_seed(0)
    module = Residual().eval()
    weights = {name: value.detach().clone() for name, value in module.named_parameters()}
    of = replace(of, model=module)
    before = staged(registry.instance("defenses", "none", {}), of.cell.federated, weights)
    one = train(of, begin(of, weights, before))
    for _ in range(3):
        threads = replace(of, threads=4)
        assert apart(one, train(threads, begin(threads, weights, before))) == 0


def test_a_training_that_stops_between_two_tests_is_tested_where_it_stops() -> None:
    of, start = course("none", rounds=9)
    end = train(of, start, lambda now: now.round < 3)
    assert [round_ for round_, _ in end.curve] == [0, 2, 3]


def test_no_round_runs_if_the_first_would_pass_the_limit(tmp_path: Path) -> None:
    of, _ = course("fed-cdp", rounds=3)
    cell = of.cell.model_copy(update={"until_epsilon": 0.01})
    result = answered(cell, RunContext(run=tmp_path))
    assert (result.rounds, result.privacy.epsilon) == (0, None)
    assert "the first would pass" in (result.privacy.absent or "")


def test_a_saved_training_without_a_needed_checkpoint_starts_again(tmp_path: Path) -> None:
    of, start = course("none")
    path = resume.place(tmp_path, "a")
    resume.save(path, train(of, start, lambda now: now.round < 3), 1)
    assert resume.load(path, start, 1, (1,)).round == 3
    assert resume.load(path, start, 1, (1, 4)).round == 3
    assert resume.load(path, start, 1, (1, 2)) is start


def test_a_defense_that_refuses_the_setting_is_n_a_in_a_training(tmp_path: Path) -> None:
    of, _ = course("none")
    cell = of.cell.model_copy(update={"defense": Entry(name="quantile", params={"sigma": 6.0})})
    found = run(cell, RunContext(run=tmp_path), Memory())
    assert found.status == "n/a"
    assert "leaves nothing for the main noise" in (found.reason or "")
