"""Detectors on constructed cases, thresholds, files of thresholds, and the command with a plug-in detector."""

import json
from math import inf, log, nan
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cells import answer, attack, entry
from tests.command import fault, output
from torch import Tensor, nn

from bench.answer.context import Memory, RunContext
from bench.cell import AttackCell, Entry, Federated, Grants
from bench.cli.detect import command
from bench.contracts.run import check
from bench.detection import measure, thresholds
from bench.detection.honest import honest_models, later
from bench.detection.measure import Bench, Caught, Row, attacked, detectors, null_of
from bench.detection.sentences import corner, sentences
from bench.detection.thresholds import FIRST, LATER, STAGES, UNION, Null
from bench.detectors.base import Detector, ReceivedModel
from bench.errors import BenchError, PluginError
from bench.gradients import one_hot
from bench.models.mlp import Mlp
from bench.record.schema import Share
from bench.registry import entries as registry
from bench.scoring.intervals import simultaneous, wilson

ALL = registry.names("detectors")


def received(
    net: nn.Module,
    weights: dict[str, Tensor],
    inputs: Tensor,
    labels: list[int],
    previous: dict[str, Tensor] | None = None,
) -> ReceivedModel:
    targets = one_hot(torch.tensor(labels), 2, torch.float32)
    return ReceivedModel(model=net, weights=weights, previous=previous or weights, inputs=inputs, targets=targets)


def score(name: str, known: ReceivedModel) -> float:
    return thresholds.score(name, registry.instance("detectors", name, {}), known)


def linear(weight: Tensor, previous: Tensor | None = None, inputs: Tensor | None = None) -> ReceivedModel:
    """A client of a linear net with two classes."""
    net = nn.Linear(weight.shape[1], len(weight)).eval()
    bias = torch.zeros(len(weight))
    x = torch.zeros(1, weight.shape[1]) if inputs is None else inputs
    before = {"weight": weight if previous is None else previous, "bias": bias + 7}
    return received(net, {"weight": weight, "bias": bias}, x, [0] * len(x), before)


def cell(**changes: Any) -> AttackCell:
    return attack(
        **{
            "attack": entry("attacks", "bins"),
            "model": entry("models", "mlp", hidden=(64,), activation="relu"),
            "federated": Federated(clients=12, per_round=2, batch=8, rate=0.5),
            "point": "type-1",
            "grants": Grants(server="weights"),
        }
        | changes
    )


# ------------------------------------------------------------------ each detector


@pytest.mark.parametrize("name", ALL)
def test_registered_detector(name: str) -> None:
    assert [each.reason for each in check("detectors", name) if each.status != "ok"] == []


def test_d_snr_is_the_largest_norm_over_the_sum_of_the_others() -> None:
    """Zero weights give all examples the same δ: norms are those of the inputs."""
    lengths = [1.0, 2.0, 3.0, 9.0, *[0.5] * 30]
    inputs = torch.tensor(lengths)[:, None] * torch.tensor([[0.6, 0.8, 0.0]])
    assert score("d-snr", linear(torch.zeros(2, 3), inputs=inputs)) == pytest.approx(9 / (6 + 15), rel=1e-5)
    assert score("d-snr", linear(torch.zeros(2, 3), inputs=inputs[:1])) == inf
    assert score("d-snr", linear(torch.zeros(2, 3), inputs=torch.zeros(4, 3))) == 0  # no gradient at all


def test_proportional_rows_are_counted_by_share() -> None:
    rows = torch.eye(8)
    rows[1] = -2 * rows[0]
    assert score("proportional-rows", linear(torch.eye(8))) == 0
    assert score("proportional-rows", linear(rows)) == pytest.approx(2 / 8)
    assert score("proportional-rows", linear(torch.ones(8, 4))) == pytest.approx(1)


def test_size_is_the_log_of_the_norms_ratio() -> None:
    weight = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    assert score("size", linear(weight)) == 0
    assert score("size", linear(100 * weight, weight)) == score("size", linear(weight, 100 * weight))
    assert score("size", linear(100 * weight, weight)) == pytest.approx(log(100))


def test_loss_jump_is_the_difference_of_losses() -> None:
    sure = torch.tensor([[3.0], [0.0]])  # right for class 0
    jump = log(2) - log(1 + torch.tensor(-3.0).exp())
    assert score("loss-jump", linear(torch.zeros(2, 1), sure, torch.ones(4, 1))) == pytest.approx(float(jump))
    assert score("loss-jump", linear(torch.full((2, 1), inf), sure, torch.ones(4, 1))) == inf


def test_single_openings_are_rows_with_one_open_example() -> None:
    """Row k opens for the examples above k; the logits do not count."""
    net = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    weights = {
        "0.weight": torch.ones(8, 1),
        "0.bias": -torch.tensor([0.5, 1.5, 2.5, 3.5, 3.6, 3.7, 9.0, 9.0]),
        "2.weight": torch.zeros(2, 8),
        "2.bias": torch.ones(2),
    }
    inputs = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    assert score("single-openings", received(net, weights, inputs, [0, 1, 0, 1])) == 3 / 8


@pytest.mark.parametrize("name", ["bins", "trap", "gallery"])
def test_the_architecture_passes_chosen_weights_and_no_other_net(tmp_path: Path, name: str) -> None:
    grants = Grants(server="weights", gallery=40 if name == "gallery" else 0)
    crafting = cell(attack=entry("attacks", name), grants=grants)
    (sent,) = honest_models(crafting, [0], (0,), RunContext(run=tmp_path), Memory())
    own = sent.previous
    known, _ = attacked(crafting, sent, RunContext(run=tmp_path), Memory())
    assert score("architecture", known) == 0 and score("size", known) > 1
    deeper, wider = Mlp(hidden=(64, 64), activation="relu"), Mlp(hidden=(65,), activation="relu")
    for other in (deeper, wider):
        weights = other.initial(other.build((1, 8, 8), 10), 0)
        inserted = ReceivedModel(
            model=known.model, weights=weights, previous=own, inputs=known.inputs, targets=known.targets
        )
        assert {each: score(each, inserted) > 0 for each in ALL} == {each: each == "architecture" for each in ALL}


@pytest.mark.parametrize("net", [entry("models", "mlp", hidden=(8,)), entry("models", "dlg-lenet")])
def test_the_architecture_catches_inserted_layers_always(tmp_path: Path, net: Entry) -> None:
    inserting = cell(model=net, grants=Grants(server="layers"))
    context, memory = RunContext(run=tmp_path), Memory()
    for sent in honest_models(inserting, range(3), (0,), context, memory):
        known, model = attacked(inserting, sent, context, memory)
        assert {each: score(each, known) > 0 for each in ALL} == {each: each == "architecture" for each in ALL}
        assert {*known.weights} == {name for name, _ in model.named_parameters()}
        assert {f"net.{name}" for name in sent.weights} < {*known.weights}


def test_accuracy_later_is_that_of_a_longer_training(tmp_path: Path) -> None:
    """A federation without a defense: further rounds learn, from initial weights as from trained ones."""
    context, memory = RunContext(run=tmp_path), Memory()
    which = cell(attack=entry("attacks", "labels-only"), grants=Grants())
    fresh, trained = honest_models(which, [0], (0, 20), context, memory)
    start, more = (
        later(fresh, fresh.setup.model, fresh.weights, rounds, 500, every=rounds)[-1][1] for rounds in (1, 20)
    )
    assert more > start + 0.2
    assert later(fresh, fresh.setup.model, trained.weights, 1, 500, every=1)[-1][1] > start + 0.2


# ------------------------------------------------------------------ thresholds


def null(scores: dict[str, list[float]], **changes: Any) -> Null:
    models = [dict(zip(scores, each, strict=True)) for each in zip(*scores.values(), strict=True)]
    return Null.of(cell(**changes), dict.fromkeys(STAGES, models))


def test_a_further_honest_model_exceeds_a_threshold_with_a_twentieth() -> None:
    """A further model is above the tenth of 200 with probability 10 / 201."""
    known = null({"one": [*range(1, 201)], "none": [0] * 200})
    assert known.threshold(FIRST, "one") == 191 and known.threshold(LATER, "none") == 0
    assert known.alarms(FIRST, {"one": 191, "none": 0}) == {"one": False, "none": False, UNION: False}
    assert known.alarms(FIRST, {"one": 192, "none": 0}) == {"one": True, "none": False, UNION: True}
    assert known.alarms(FIRST, {"one": 1, "none": 1}) == {"one": False, "none": True, UNION: True}


def test_the_union_of_two_detectors_halves_each_share() -> None:
    """Disjoint tails: five models of each make 5 % together."""
    known = null({"a": [*range(200)], "b": [*range(199, -1, -1)]})
    assert [known.alarms(FIRST, {"a": value, "b": 0})[UNION] for value in (194.5, 195.5, 199.5)] == [False, True, True]


def test_infinity_at_a_single_example_is_no_alarm() -> None:
    known = null({"d-snr": [inf] * 200, "size": [0.0] * 200})
    assert known.alarms(FIRST, {"d-snr": inf, "size": 0}) == {"d-snr": False, "size": False, UNION: False}
    assert known.alarms(FIRST, {"d-snr": inf, "size": 1}) == {"d-snr": False, "size": True, UNION: True}


def test_too_many_detectors_for_the_models_are_a_line() -> None:
    tails = {f"detector {n}": [float(model == n) for model in range(200)] for n in range(12)}
    with pytest.raises(BenchError, match="the union of 12 detectors has no threshold at 5 % false alarms from 200"):
        null(tails).alarms(FIRST, dict.fromkeys(tails, 0.0))


def stages(**scores: Any) -> dict[str, Any]:
    return {"scores": dict.fromkeys(STAGES, scores)}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"net": "lenet"}, r"thresholds for net lenet, not mlp\(activation=relu"),
        ({"dataset": "mnist 0"}, "thresholds for dataset mnist 0, not digits"),
        ({"batch": 1}, "thresholds for batch 1, not 8"),
        (stages(size=[0.0] * 199), "from 199 honest models in stage first, at least 200"),
        (stages(), "from 0 honest models"),
        (stages(size=[nan] * 200), "a score is NaN"),
        (stages(other=[0.0] * 200), "no scores of the detector size"),
        ({"scores": {"first": {}}}, "no file of thresholds"),
        (stages(size=["x"]), "no file of thresholds"),
        ({"more": 1}, "no file of thresholds"),
    ],
)
def test_a_wrong_file_of_thresholds_is_a_line(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    path = tmp_path / "t.json"
    null({"size": [0.0] * 200}).write(path)
    assert thresholds.read(path, cell(), ["size"]).threshold(FIRST, "size") == 0
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(BenchError, match=reason) as caught:
        thresholds.read(path, cell(), ["size"])
    assert "\n" not in str(caught.value)


class Broken(Detector):
    def __init__(self, value: Any) -> None:
        self.value = value

    def score(self, received: ReceivedModel) -> float:
        return float(self.value[len(received.inputs)])


def test_nan_and_an_exception_are_a_line() -> None:
    known = linear(torch.zeros(2, 3))
    with pytest.raises(PluginError, match="detector mine gives NaN for a client with 1 examples; return a number"):
        thresholds.score("mine", Broken({1: nan}), known)
    with pytest.raises(PluginError, match=r"detector mine: .*KeyError: 1; mend its score"):
        thresholds.score("mine", Broken({}), known)


# ------------------------------------------------------------------ the command

MINE = """
from dataclasses import dataclass
from bench.detectors.base import Detector, ReceivedModel

@dataclass(frozen=True, kw_only=True)
class LargestWeight(Detector):
    reference = "mine"
    looks_at = "weights"

    def score(self, received: ReceivedModel) -> float:
        return max(float(value.abs().max()) for value in received.weights.values())
"""


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    for each in (
        cell(),
        cell(attack=entry("attacks", "bins", gain=1.0)),
        cell(grants=Grants(server="weights"), draw=1),
        cell(grants=Grants(server="layers")),
    ):
        answer(each, tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_plug_in_detector_is_a_column(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_added", {})
    (run_folder / "mine.py").write_text(MINE)
    given = {name: [float(n) / 200 for n in range(200)] for name in (*ALL, "largest-weight")}
    null(given).write(run_folder / "t.json")
    made = output(
        command,
        run_folder,
        "--plugin",
        run_folder / "mine.py",
        "--trials",
        2,
        "--thresholds",
        run_folder / "t.json",
        "--picture",
        run_folder / "p.svg",
        "--json",
    )
    told = json.loads(made[: made.rindex("}") + 1])
    caught = {row["attack"]: row["caught"] for row in told["rows"]}
    assert list(caught) == ["bins", "bins gain 1", "bins inserted layers"]  # another draw is no other attack
    assert all(each["alarms"]["architecture"] == each["trials"] for each in caught["bins inserted layers"].values())
    added = {row["attack"]: row["added_bytes"] for row in told["rows"]}
    assert added == {"bins": 0, "bins gain 1": 0, "bins inserted layers": 4 * (1024 * (64 + 1) + 1024 + 1)}
    assert told["thresholds"][0]["first"]["largest-weight"] == told["thresholds"][0]["later"]["size"] == 0.95
    assert [each["alarms"]["largest-weight"] for each in caught["bins"].values()] == [2, 2, 2]
    assert [each["alarms"]["architecture"] for each in caught["bins"].values()] == [0, 0, 0]
    assert len(told["sentences"]) == 3 and (run_folder / "p.svg").read_text().startswith("<svg")
    monkeypatch.setattr(registry, "_added", {})
    monkeypatch.setenv("COLUMNS", "200")  # a narrow table breaks lines inside a cell
    text = output(command, run_folder, "--trials", 1, "--thresholds", run_folder / "t.json")
    assert "bins gain 1" in text and "Caught on average, by round: first 100%" in text and "size 100" in text
    assert "Inserted layers add 0.3 MB to a model and to an update." in text


def test_a_run_without_chosen_weights_is_a_line(tmp_path: Path) -> None:
    answer(cell(attack=entry("attacks", "labels-only"), grants=Grants()), tmp_path)
    assert "bench run --matrix server" in fault(command, tmp_path)
    assert "ends in .svg or .png" in fault(command, tmp_path, "--picture", tmp_path / "x.pdf")


def row(name: str, reconstructed: float, alarms: int, named: float | None = None) -> Row:
    share = Share(value=reconstructed, low=0, high=1)
    caught = Caught(
        trials=20,
        alarms={UNION: alarms},
        honest=0.1,
        attacked=0.1,
        later_honest=0.2,
        later_back=0.2,
        later_attacked=0.1,
    )
    return Row(
        attack=name,
        family=name,
        condition="c",
        cell="0" * 64,
        reconstructed=share,
        named=None if named is None else Share(value=named, low=0, high=1),
        seconds=0.1,
        added_bytes=0,
        caught={"first": caught},
    )


def test_the_corner_is_uncaught_and_complete() -> None:
    rows = [row("seen", 1, 20), row("poor", 0.3, 0), row("hidden", 0.8, 2), row("names", 0, 0, named=1)]
    assert [each.attack for each, _, _ in corner(rows)] == ["hidden"]
    assert sentences(rows) == [
        "Caught in every trial: 1 of 3 choices of weights, counted by attack and round.",
        "Uncaught and complete (no more alarms than false alarms, half of the examples or more): hidden, first round "
        "(80% reconstructed, 10% caught).",
        "Caught on average, by round: first 37%.",
    ]
    assert "no attack in any round" in sentences(rows[:2])[1]
    with pytest.raises(BenchError, match="no attack of the run reconstructs"):
        sentences(rows[3:])


@pytest.mark.slow
def test_a_second_null_holds_its_false_alarms(tmp_path: Path) -> None:
    """Of other federations: the interval for the share of alarms reaches down to 5 %, for all shares together."""
    bench = Bench(detectors=detectors(), context=RunContext(run=tmp_path), memory=Memory(), trials=1)
    first, second = (null_of(cell(), bench, 200, seed) for seed in (measure.NULL_SEEDS, 50_000))
    counts: dict[tuple[str, str], int] = {}
    for stage in STAGES:
        alarms = [
            first.alarms(stage, {name: second.scores[stage][name][model] for name in second.detectors})
            for model in range(200)
        ]
        counts |= {(stage, name): sum(each[name] for each in alarms) for name in (*first.detectors, UNION)}
    level = simultaneous(len(counts))
    assert {which: count for which, count in counts.items() if wilson(count, 200, level)[0] > 0.05} == {}
    assert all(wilson(counts[stage, UNION], 200)[0] <= 0.05 for stage in STAGES)
    assert sum(counts[stage, UNION] for stage in STAGES) > 0
    assert sum(counts.values()) <= 0.05 * 200 * len(counts)
