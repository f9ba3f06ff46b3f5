"""Plug-ins in processes of their own: the same figures, and neither the scorer nor the truth within their reach."""

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.answer.context import Memory, RunContext
from bench.answer.place import HERE
from bench.answer.run import run
from bench.answer.train import OnProgress
from bench.cell import AnyCell, TrainingCell
from bench.errors import NotApplicable, PluginError
from bench.isolation import wire
from bench.isolation.isolation import Isolation
from bench.leaderboard.board import board
from bench.matrix.expand import expand
from bench.matrix.read import read
from bench.record.equality import differences
from bench.record.schema import Record
from bench.registry import entries as registry
from bench.sweep.checked import broken
from bench.sweep.plan import Resolver

PLUGIN = """
import gc, os, pathlib, threading
from dataclasses import dataclass, replace

import torch

import bench.answer.scores
from bench.attacks.bins import Bins
from bench.attacks.cpl import Cpl
from bench.attacks.priors_only import MeanPicture
from bench.datasets.cancer import Cancer
from bench.defenses.base import AddedNoise, Defense, Transform
from bench.defenses.gaussian import Gaussian
from bench.defenses.prune import Prune
from bench.models.mlp import Mlp
from bench.trip import Victims

class TwinPrune(Prune): pass
class TwinGaussian(Gaussian): pass
class TwinCpl(Cpl): pass
class TwinMlp(Mlp): pass
class TwinCancer(Cancer): pass

if str(os.getpid()) != os.environ["SCORER"]:
    _score = bench.answer.scores.score
    def worthless(inputs, labels, reconstruction, **rest):
        return _score(inputs, labels, replace(reconstruction, inputs=reconstruction.inputs * 0), **rest)
    bench.answer.scores.score = worthless

def victims():
    return [each for each in gc.get_objects() if type(each) is Victims]

class _Hostile(Defense):
    reference = "a cheat"
    stages = ("example",)
    def transforms(self, setting):
        return {"example": (self.part(),)}

class Unchanged(Transform):
    def apply(self, tensors, context):
        return dict(tensors)

class Spoiler(Unchanged):
    def apply(self, tensors, context):
        for each in victims():
            each.inputs.fill_(0.5)
        return dict(tensors)

class Mortal(Unchanged):
    times = 1
    def apply(self, tensors, context):
        died = pathlib.Path(os.environ["DIED"] + f"-of-{self.times}")
        count = len(died.read_text()) if died.exists() else 0
        if count < self.times:
            died.write_text("x" * (count + 1))
            os._exit(7)
        return dict(tensors)

class TwiceMortal(Mortal):
    times = 2

class Locked(Unchanged):
    def __init__(self):
        self.lock = threading.Lock()

class Subclass(torch.Tensor):
    def __reduce_ex__(self, protocol):
        return (os.mkdir, (os.environ["DIED"] + "-arrived",))

class BringsCode(Unchanged):
    def apply(self, tensors, context):
        return {name: (1.01 * value).as_subclass(Subclass) for name, value in tensors.items()}

class MovesWeights(Unchanged):
    def apply(self, tensors, context):
        for value in context.weights.values():
            value.neg_()
        return dict(tensors)

class NoNumber(Unchanged):
    def apply(self, tensors, context):
        return {name: value / 0 for name, value in tensors.items()}

class Misdescribed(Unchanged):
    # turned about, and said to be left as it is; faint noise makes it random
    random = True
    def apply(self, tensors, context):
        return {
            name: value.flip(-1) + 1e-9 * context.draws.normal(name, value) for name, value in tensors.items()
        }
    def expected(self, tensors, state, context):
        return dict(tensors), state
    def noise(self, context, state):
        return AddedNoise(variance=1e-18)

class BringsCodeAlong(_Hostile):
    part = BringsCode
class MovesTheWeights(_Hostile):
    part = MovesWeights
class SendsNoNumber(_Hostile):
    part = NoNumber
class SaysSomethingElse(_Hostile):
    part = Misdescribed
class LeavesAll(_Hostile):
    part = Unchanged
class MovesTruth(_Hostile):
    part = Spoiler
class DiesOnce(_Hostile):
    part = Mortal
class DiesTwice(_Hostile):
    part = TwiceMortal
class HoldsLock(_Hostile):
    part = Locked

class Thief(MeanPicture):
    reference = "a cheat"
    def reconstruct(self, reading, budget, key):
        made = MeanPicture.reconstruct(self, reading, budget, key)
        for each in victims():
            made.inputs.copy_(each.inputs[:, 0, 0, :1])
        return made

class Chooser(Bins):
    def craft(self, server, key):
        if os.path.exists(os.environ["DIED"] + "-apart") and victims():
            raise ValueError("the victims are in this process")
        return Bins.craft(self, server, key)
"""
SERVER = """title = "a server"
readings = 3
[axes]
dataset = {dataset}
model = [{{ name = "mlp", hidden = [64], activation = "relu" }}]
point = ["type-1"]
federated = [{{ batch = 4 }}]
defense = {defense}
attack = {attack}
grants = [[{{ server = "weights" }}], [{{ server = "rounds", repeated_readings = 3 }}]]
"""
ATTACKS = """title = "twins"
readings = 3
evaluations = 40
[axes]
dataset = {dataset}
model = {model}
point = ["type-2"]
defense = {defense}
[[attack]]
attack = {attack}
knowledge = ["plain", "adaptive"]
[[attack]]
attack = ["gallery"]
knowledge = ["black-box"]
grants = [[{{ gallery = 20 }}]]
"""
TRAINING = """title = "twins trained"
[axes]
dataset = {dataset}
model = {model}
attack = ["cpl"]
point = ["type-2"]
defense = {defense}
federated = [{{ clients = 10, per_round = 2, client_examples = 6, batch = 3 }}]
[[train]]
dataset = {dataset}
model = {model}
defense = {defense}
federated = [{{ clients = 10, per_round = 2 }}]
rounds = [2]
checkpoints = [2]
"""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("plugin") / "plugin.py"
    path.write_text(PLUGIN)
    return str(path)


@pytest.fixture(scope="module")
def isolation(plugin: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Isolation]:
    """One worker's processes; in each, the plug-in patches the scorer when it is loaded."""
    died = tmp_path_factory.mktemp("died") / "died"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_added", {})
        patch.setenv("SCORER", str(os.getpid()))
        patch.setenv("DIED", str(died))
        with closing(Isolation([plugin], "cpu")) as isolation:
            yield isolation


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_added", {})


@pytest.fixture
def together(plugin: str) -> Callable[..., list[Record]]:
    """Answers cells in this process, with the plug-in's code."""

    def answer(wanted: Sequence[AnyCell], folder: Path) -> list[Record]:
        registry.add_plugin(plugin)
        memory = Memory()
        return [run(cell, RunContext(run=folder), memory) for cell in wanted]

    return answer


@pytest.fixture
def apart(isolation: Isolation) -> Callable[..., list[Record]]:
    """Answers cells without the plug-in's code in this process."""

    def answer(
        wanted: Sequence[AnyCell], folder: Path, on_progress: OnProgress = lambda progress: None
    ) -> list[Record]:
        registry.drop_plugins()
        registry.declare(isolation.origins)
        memory, context = Memory(), RunContext(run=folder)
        return [run(cell, context, memory, on_progress, isolation) for cell in wanted]

    return answer


Answer = Callable[..., list[Record]]


def cells(plugin: str, folder: Path, text: str, **parts: str) -> list[AnyCell]:
    """A matrix's cells; the plug-in's parameters are checked, and its code is not kept."""
    registry.add_plugin(plugin)
    path = folder / "m.toml"
    path.write_text(text.format(**{name: f'["{part}"]' for name, part in parts.items()}))
    return [item.cell for item in expand(read(path), Resolver(None).data)]


def attacks(plugin: str, folder: Path, **parts: str) -> list[AnyCell]:
    """Plain, adaptive, and a black-box naming."""
    usual = {"dataset": "digits", "model": "dlg-lenet", "attack": "cpl", "defense": "none"}
    return cells(plugin, folder, ATTACKS, **(usual | parts))


@pytest.mark.parametrize(
    "twin",
    [
        {"defense": "twin-prune"},
        pytest.param({"attack": "twin-cpl", "defense": "twin-gaussian"}, marks=pytest.mark.slow),
        pytest.param({"dataset": "twin-cancer", "model": "twin-mlp"}, marks=pytest.mark.slow),
    ],
)
def test_figures_are_those_of_one_process_bit_for_bit(
    tmp_path: Path, plugin: str, together: Answer, apart: Answer, twin: dict[str, str]
) -> None:
    wanted = attacks(plugin, tmp_path, **twin)
    ours, theirs = together(wanted, tmp_path / "one"), apart(wanted, tmp_path / "other")
    for one, other in zip(ours, theirs, strict=True):
        assert (one.status, other.status, other.reason) == ("done", "done", None)
        assert differences(one, other) == [] and one.provenance == other.provenance
        assert other.cost.cpu_seconds > 0 and other.cost.peak_mb > 100


def test_a_plug_in_chooses_a_server_s_weights_apart_from_the_victims(
    tmp_path: Path, plugin: str, together: Answer, apart: Answer
) -> None:
    wanted = cells(plugin, tmp_path, SERVER, dataset="digits", defense="twin-prune", attack="chooser")
    ones = together(wanted, tmp_path / "one")
    Path(os.environ["DIED"] + "-apart").touch()
    others = apart(wanted, tmp_path / "other")
    assert len(ones) == len(others) == 2  # the weights once, and in each of three rounds
    for one, other in zip(ones, others, strict=True):
        assert (one.status, other.status, other.reason) == ("done", "done", None)
        assert differences(one, other) == [] and leaked(other) > 0
    for caught in together(wanted, tmp_path / "caught"):
        assert caught.reason is not None and "the victims are in this process" in caught.reason


@pytest.mark.parametrize(
    "twin",
    [
        {"dataset": "digits", "model": "dlg-lenet", "defense": "twin-gaussian"},
        {"dataset": "twin-cancer", "model": "mlp", "defense": "none"},
    ],
)
def test_a_training_with_a_plug_in_is_the_same_and_tells_its_rounds(
    tmp_path: Path, plugin: str, together: Answer, apart: Answer, twin: dict[str, str]
) -> None:
    wanted = [cell for cell in cells(plugin, tmp_path, TRAINING, **twin) if isinstance(cell, TrainingCell)]
    (one,), rounds = together(wanted, tmp_path / "one"), list[int]()
    (other,) = apart(wanted, tmp_path / "other", lambda now: rounds.append(now.round))
    assert (one.status, other.status, other.reason) == ("done", "done", None)
    assert differences(one, other) == [] and rounds == [1, 2]


def test_an_equal_reading_is_attacked_once_whoever_it_came_from(tmp_path: Path, plugin: str, apart: Answer) -> None:
    """A plain reading that a plug-in's defense leaves as it was costs no second attack."""
    built_in, same = attacks(plugin, tmp_path)[0], attacks(plugin, tmp_path, defense="leaves-all")[0]
    first, second = apart([built_in, same], tmp_path / "run")
    assert first.cost.reused_from is None and second.cost.reused_from == built_in.id


def leaked(record: Record) -> float:
    assert record.attack is not None, record.reason
    value = record.attack.figures().asr.value
    assert value is not None
    return value


def test_a_plug_in_cannot_patch_the_scorer(tmp_path: Path, plugin: str, apart: Answer) -> None:
    """It does, in the processes that load it: there every reconstruction would be scored as black."""
    # a pipeline with its code and a clean attacker, then an attacker with its code
    wanted = [attacks(plugin, tmp_path, defense="leaves-all")[0], attacks(plugin, tmp_path, attack="twin-cpl")[0]]
    assert [leaked(record) for record in apart(wanted, tmp_path / "run")] == [1, 1]


def test_a_defense_cannot_move_the_truth(tmp_path: Path, plugin: str, together: Answer, apart: Answer) -> None:
    wanted = attacks(plugin, tmp_path, defense="moves-truth")[:1]
    assert [leaked(record) for record in together(wanted, tmp_path / "one")] == [0]
    assert [leaked(record) for record in apart(wanted, tmp_path / "other")] == [1]


def test_an_attack_does_not_find_the_victims(tmp_path: Path, plugin: str, together: Answer, apart: Answer) -> None:
    wanted = attacks(plugin, tmp_path, attack="thief")[:1]
    assert [leaked(record) for record in together(wanted, tmp_path / "one")] == [1]
    assert [leaked(record) for record in apart(wanted, tmp_path / "other")] == [0]


def test_a_defense_that_holds_what_cannot_travel_is_told_so(tmp_path: Path, plugin: str, apart: Answer) -> None:
    plain, adaptive = apart(attacks(plugin, tmp_path, defense="holds-lock")[:2], tmp_path / "run")
    assert plain.status == "done"
    assert adaptive.status == "crashed" and adaptive.reason is not None
    assert adaptive.reason.startswith("the reading cannot be sent to the attacker's process: TypeError")


@pytest.mark.slow  # each death is three seconds
def test_a_process_that_dies_once_costs_its_cell_nothing_and_one_that_dies_twice_is_told(
    tmp_path: Path, plugin: str, apart: Answer
) -> None:
    once, twice = (attacks(plugin, tmp_path, defense=name)[0] for name in ("dies-once", "dies-twice"))
    first, second, third = apart([once, twice, once], tmp_path / "run")
    assert first.status == third.status == "done"
    assert (second.status, second.reason) == ("crashed", "the pipeline's process died (exit code 7)")


def test_no_code_travels_with_a_plain_reading(tmp_path: Path, plugin: str, apart: Answer) -> None:
    """A subclass of a tensor names what is called when it is unpickled."""
    (record,) = apart(attacks(plugin, tmp_path, defense="brings-code-along")[:1], tmp_path / "run")
    assert record.status == "done", record.reason
    assert not list(tmp_path.parent.rglob("*-arrived"))


@pytest.mark.parametrize(
    ("defense", "reason"),
    [
        ("moves-the-weights", "defense moves-the-weights wrote to the round's weights; let it work on copies"),
        ("sends-no-number", "defense sends-no-number sends what is no number; mend it"),
    ],
)
def test_what_a_round_must_not_do_is_a_crash(
    tmp_path: Path, plugin: str, apart: Answer, defense: str, reason: str
) -> None:
    (record,) = apart(attacks(plugin, tmp_path, defense=defense)[:1], tmp_path / "run")
    assert (record.status, record.reason) == ("crashed", reason)


@pytest.mark.slow
def test_a_description_that_is_not_of_the_reading_is_a_fault_in_every_cell(
    tmp_path: Path, plugin: str, apart: Answer
) -> None:
    """The faint noise would make the row random, of which a distance at the truth says nothing."""
    wanted = attacks(plugin, tmp_path, defense="says-something-else")[:2]
    records = apart(wanted, tmp_path / "run")
    adaptive = records[1]
    assert adaptive.attack is not None and adaptive.attack.conditions.random
    assert adaptive.attack.self_check.explained is False
    (row,) = board(records)
    assert row.broken and "truth-unexplained" in [flag.code for flag in row.flags]


@pytest.mark.slow
def test_a_defense_is_checked_beside_its_cells(
    tmp_path: Path, plugin: str, apart: Answer, isolation: Isolation
) -> None:
    honest, absent, built_in = (
        attacks(plugin, tmp_path, defense=name)[0] for name in ("twin-gaussian", "holds-lock", "gaussian")
    )
    apart([], tmp_path / "run")  # this process has none of the code
    assert broken(honest, isolation) == broken(built_in, isolation) == broken(built_in, HERE) == ()
    names = [line.partition(":")[0] for line in broken(absent, isolation)]
    assert names == ["declared", "stages", "acts"]


def test_what_a_process_answers_is_read_as_data() -> None:
    tensor, array, words = wire.load(wire.dump((torch.arange(3.0), np.ones((2, 2), np.int64), ("a", None, 1.5))))
    assert torch.equal(tensor, torch.arange(3.0)) and np.array_equal(array, np.ones((2, 2)))
    assert words == ("a", None, 1.5)
    with pytest.raises(NotApplicable, match="no"):
        raise wire.load(wire.dump(NotApplicable("no")))


@pytest.mark.parametrize("function", [os.system, eval, registry.add_plugin, Isolation])
def test_what_a_process_answers_calls_nothing(function: object) -> None:
    class Call:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return function, ("echo called",)

    with pytest.raises(PluginError, match="cannot be read"):
        wire.load(pickle.dumps(Call()))
