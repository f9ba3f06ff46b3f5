"""Assessment of a client: what came back, what would help, a private page, and an exit code."""

import json
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tests import runs
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bench import api
from bench.assess import members, plans
from bench.assess.client import of_recording
from bench.assess.recognition import recognised
from bench.assess.remedies import FAMILIES, families
from bench.cli.assess import command
from bench.errors import BenchError
from bench.registry import entries as registry
from bench.trip import Reading


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few evaluations, whatever the machine has time for."""
    monkeypatch.setattr(plans, "MOST", 40)
    monkeypatch.setattr(plans, "_PROBE", (2, 0.0))
    monkeypatch.setattr("bench.assess.remedies._LEAST", 2)
    monkeypatch.setattr("bench.assess.remedies.TRIALS", 2)


def shapes(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Bright bars whose column is the class."""
    source = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 4
    images = 0.3 * torch.rand(count, 1, 6, 6, generator=source)
    images[torch.arange(count), :, :, labels] += 0.6
    return images, labels


def recorded(
    make: Callable[..., torch.optim.Optimizer] = torch.optim.SGD, count: int = 4, public: int = 60
) -> api.Recording:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 24), nn.ReLU(), nn.Linear(24, 4))
    optimizer = make(model.parameters(), lr=0.1)
    x, y = shapes(count, 0)
    with api.recording(model, optimizer) as sent:
        cross_entropy(model(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            held, labels = shapes(public, 1)
            cross_entropy(model(held), labels)
    return sent


class Parts:
    """The parts in the order in which they were shown."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def planned(self, parts: Sequence[tuple[str, float]]) -> None:
        self.parts += [name for name, _ in parts]

    def began(self, part: str) -> None:
        self.parts.append(part)

    def ended(self, part: str) -> None:
        self.parts.append(part)


def test_a_recorded_client_comes_back_and_noise_helps(tmp_path: Path) -> None:
    watch = Parts()
    result = api.assess(recorded(), out=tmp_path, minutes=0.5, watch=watch, notes=["seen: nothing"])
    assert watch.parts == ["update", "inside", "remedies", *("update",) * 2, *("inside",) * 2, *("remedies",) * 2]
    assert result.explained
    update, inside = result.listeners
    assert inside.figures["reconstructed"].share.value == 1.0  # a fully connected layer shows single examples
    assert update.figures["recognised"].share.value == 1.0
    known = {each.defense.partition(":")[0]: each for each in result.remedies}
    board = {each.defense.partition(":")[0]: each for each in families()}
    assert set(known) == {"none", *board} and len(board) == FAMILIES
    plain, noisy = known["none"].recognised, known["dp-sgd"].recognised
    assert plain is not None and noisy is not None
    assert plain.share.value == 1.0 and plain.ceiling is None
    assert noisy.share.value < 1.0 and noisy.ceiling is not None and noisy.ceiling < 0.3
    assert known["dp-sgd"].kept == board["dp-sgd"].kept > 0.9
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "data:" not in page and "://" not in page  # pictures stay files
    assert '<img src="update.png"' in page and (tmp_path / "update.png").is_file()
    assert "seen: nothing" in page
    written = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert written["remedies"][0]["recognised"]["share"]["value"] == 1.0
    assert any("4 distinct examples" in line for line in result.decides)


def test_a_training_that_no_attack_simulates_is_attacked_inside_only(tmp_path: Path) -> None:
    result = api.assess(recorded(torch.optim.RMSprop), out=tmp_path, minutes=0.5)
    assert [each.name for each in result.listeners] == ["inside"]
    assert "the optimizer RMSprop" in result.declaration
    assert not result.explained and result.figure("reconstructed") is None
    with pytest.raises(BenchError, match="no figure"):
        result.figure("leaked")


def test_a_client_with_adam_is_attacked_with_a_note(tmp_path: Path) -> None:
    result = api.assess(recorded(torch.optim.Adam), out=tmp_path, minutes=0.5)
    assert [each.name for each in result.listeners] == ["update", "inside"]
    assert any("Adam hides the size of a gradient" in note for note in result.notes)


def stepped(count: int = 64, public: int = 600) -> api.Recording:
    """Several local steps over many examples."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 256), nn.ReLU(), nn.Linear(256, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = shapes(count, 0)
    with api.recording(model, optimizer) as sent:
        for step in range(0, count, 16):
            optimizer.zero_grad()
            cross_entropy(model(x[step : step + 16]), y[step : step + 16]).backward()
            optimizer.step()
        with torch.no_grad():
            held, labels = shapes(public, 1)
            cross_entropy(model(held), labels)
    return sent


def test_members_of_a_long_training_are_recognised_and_strangers_are_not() -> None:
    client = of_recording(stepped(), None, None)
    assert client.update is not None and client.update.steps == 4
    trials = members.Trials.of(client, 0)
    assert not set(trials.fit.tolist()) & set(trials.strangers.flatten().tolist())
    found = members.recognised(client, client.update, trials)
    assert found.of == 64 and found.chance == 0.1 and found.share.low > 0.2
    other = replace(client, inputs=shapes(64, 7)[0][None])  # no member: one in ten has the highest score
    assert members.recognised(other, client.update, trials).share.value < 0.25  # 6.4 expected, 16 with p < 4e-4
    few = replace(client, public=shapes(30, 1)[0], public_labels=shapes(30, 1)[1])
    with pytest.raises(BenchError, match="^too few strangers: .* with 9 public examples of the same label: 0 of "):
        members.Trials.of(few, 0)


def test_a_long_training_is_answered_by_names_and_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "EXAMPLES", 32)
    result = api.assess(stepped(), out=tmp_path, minutes=0.5)
    update = result.listeners[0]
    assert [each.attack for each in update.attempts][-2:] == ["gallery", "members"]
    assert "of 64 examples named" in update.attempts[-2].line  # as many as the time allows
    count, text = update.attempts[-1].line.split(" ", 1)
    assert text.startswith("of 64 examples above 9 strangers each")
    assert update.figures["recognised"].share.value >= int(count) / 64 > 0.2, "the larger of both"


def test_recognition_follows_the_defense() -> None:
    """A sign still names examples, strong noise does not, and strangers are needed."""
    client = of_recording(recorded(), None, None)
    sign = registry.instance("defenses", "sign", {"at": "client"})
    assert recognised(client, sign, trials=4).share.value == 1.0
    lost = registry.instance("defenses", "gaussian", {"at": "client", "variance": 1e6})
    assert recognised(client, lost, trials=8).share.value < 0.5
    with pytest.raises(BenchError, match="needs strangers"):
        recognised(of_recording(recorded(), shapes(9, 3)[0], None), sign)


def files(folder: Path, labels: list[int] | None = None) -> list[str]:
    model = api.build("mlp", shape=(1, 6, 6), classes=4)
    x, y = shapes(2, 0)
    known, known_labels = shapes(40, 1)
    gradients = api.gradient(model, x, y)
    reading = api.reading(gradients, model=model, shape=(1, 6, 6), classes=4, batch=2, labels=y)
    api.save_reading(folder / "reading.npz", reading)
    np.savez(folder / "truth.npz", inputs=x.numpy(), labels=np.array(labels or y.tolist()))
    np.savez(folder / "public.npz", inputs=known.numpy(), labels=known_labels.numpy())
    names = [str(folder / f"{name}.npz") for name in ("reading", "truth", "public")]
    return [names[0], "--model", "mlp", "--truth", names[1], "--public", names[2], "--minutes", "0.5"]


def test_the_command_has_an_exit_code(tmp_path: Path) -> None:
    line = [*files(tmp_path), "--out", str(tmp_path / "leak")]
    said = CliRunner().invoke(command, [*line, "--json", "--fail-above", "recognised=0.2"])
    assert said.exit_code == 1, said.output
    assert json.loads(said.stdout)["above"] == ["recognised: 100.0% is above 20.0%"]
    assert (tmp_path / "leak" / "report.html").is_file()
    fine = CliRunner().invoke(command, [*line, "--fail-above", "recognised=1"])
    assert fine.exit_code == 0, fine.output
    assert "What would help: the gradient over 2 of the client's examples" in fine.output
    wrong = CliRunner().invoke(command, [*line, "--fail-above", "leaked=.2"])
    assert isinstance(wrong.exception, BenchError)


@pytest.mark.slow
def test_sigterm_during_an_assessment_is_one_line(tmp_path: Path) -> None:
    with runs.bench("assess", *files(tmp_path), "--out", tmp_path / "leak") as bench:
        bench.until(lambda: "less if an attack ends early" in bench.output)
        bench.process.send_signal(signal.SIGTERM)
        lines = bench.ended(code=143).splitlines()
    assert len(lines) == 2 and lines[1] == "bench: stopped by SIGTERM"


def test_a_wrong_truth_is_no_low_figure(tmp_path: Path) -> None:
    line = [*files(tmp_path, labels=[2, 3]), "--out", str(tmp_path / "leak"), "--fail-above", "reconstructed=.9"]
    said = CliRunner().invoke(command, line)
    assert said.exit_code == 1
    assert "fail: reconstructed: not measured" in said.output
    assert "does not explain" in said.output


def test_few_strangers_give_no_figure_for_recognition(tmp_path: Path) -> None:
    """One public example: half of all guesses name the client's example."""
    report = api.assess(recorded(public=1), out=tmp_path, minutes=0.5)
    assert all("recognised" not in each.figures for each in report.listeners)
    lines = [attempt.line for each in report.listeners for attempt in each.attempts if attempt.attack == "gallery"]
    assert lines and all(line.startswith("not run: too few strangers: chance names") for line in lines)
    assert report.remedies and all(each.recognised is None for each in report.remedies)
    assert all(each.note.startswith("too few strangers: chance names") for each in report.remedies)


def test_without_public_examples_another_search_draws_the_picture(tmp_path: Path) -> None:
    report = api.assess(recorded(public=0), out=tmp_path, minutes=0.5)
    update = report.listeners[0]
    lines = {attempt.attack: attempt.line for attempt in update.attempts}
    assert lines["map"] == ("not run: it learns the distribution of inputs from public examples; give at least 3")
    assert "of 4 examples reconstructed" in lines["gradinv"] and "evaluations" in lines["gradinv"]
    assert (tmp_path / str(update.picture)).is_file()


def test_a_low_figure_of_a_search_that_the_time_ended_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = plans.Search(attack="gradinv", evaluations=3, each=0.1)
    monkeypatch.setattr(plans, "_search", lambda *_: short)
    report = api.assess(recorded(public=0), out=tmp_path, minutes=0.5)
    update = report.listeners[0]
    attempt = next(attempt for attempt in update.attempts if attempt.attack == "gradinv")
    assert attempt.cut and "after 3 evaluations; the time limit ended the search" in attempt.line
    assert "time limit" not in report.verdict  # a closed form reconstructs all examples
    figure = update.figures["reconstructed"]
    few = replace(figure, share=replace(figure.share, value=0.0, low=0.0))
    report = replace(report, listeners=(replace(update, figures={"reconstructed": few}),))
    assert "0 of 4 reconstructed (the time limit ended the search)" in report.verdict
    assert not any(attempt.cut for attempt in update.attempts if attempt.attack == "analytic")


def test_the_planned_time_counts_search_and_gallery(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with known speed: half a second before a search, 50 ms an evaluation, 20 ms a candidate."""
    clock = [0.0]

    def attack(reading: Reading, name: str, *, evaluations: int = 0, **_: object) -> None:
        candidates = 0 if reading.gallery_inputs is None else len(reading.gallery_inputs)
        clock[0] += 0.02 * candidates if name == "gallery" else 0.5 + 0.05 * evaluations

    monkeypatch.setattr(plans, "attack", attack)
    monkeypatch.setattr(plans, "MOST", 2000)
    monkeypatch.setattr(plans, "_PROBE", (6, 1.0))
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    update, inside = plans.plans(of_recording(recorded(count=4, public=60), None, None), 100.0, 0)
    search = update.searches[0]
    assert 889 <= search.evaluations <= 890 and search.seconds == pytest.approx(45.0, abs=0.06)
    assert not isinstance(update.naming, str) and update.naming.seconds == pytest.approx(64 * 0.02)
    assert update.seconds == pytest.approx(45.0 + 1.28, abs=0.06)
    assert 289 <= inside.searches[0].evaluations <= 290  # a third of the update's time
    (slow, _) = plans.plans(of_recording(recorded(count=4, public=60), None, None), 5.0, 0)
    assert slow.searches[0].refused.startswith("an evaluation takes 0.05 s") and slow.searches[0].seconds == 0
