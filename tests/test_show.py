"""`bench show`: a run's cells in a list, one cell in words, its picture written beside the records."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from tests.cells import answer, attack, training
from tests.command import fault, output

from bench.cell import AttackCell, Entry, Federated, Grants
from bench.cli import cell_text
from bench.cli.show import command
from bench.errors import RecordError
from bench.leaderboard.forms.numbers import figure, share
from bench.record import store as records
from bench.record.metrics import LPIPS, METRICS
from bench.record.schema import Summary


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three tiny cells on digits: cpl at type-1, the mean picture at type-2, a training."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    shared: dict[str, Any] = {
        "model": Entry(name="dlg-lenet"),
        "federated": Federated(batch=2, clients=20, per_round=5),
    }
    answer(attack(**shared, attack=Entry(name="cpl"), point="type-1", evaluations=30), folder)
    answer(attack(**shared, attack=Entry(name="prior-mean"), grants=Grants(labels=True)), folder)
    answer(training(**shared, rounds=4, test_every=2, checkpoints=(4,)), folder)
    return folder


@pytest.fixture
def ids(run: Path) -> dict[str, str]:
    cells = [record.cell for record in records.records(run)]
    return {cell.attack.name if isinstance(cell, AttackCell) else "training": cell.id for cell in cells}


@pytest.fixture
def write(tmp_path: Path, run: Path, ids: dict[str, str]) -> Callable[..., Path]:
    """A run with one record: the cpl cell's, some fields changed."""

    def one(name: str = "cpl", **changes: Any) -> Path:
        content = json.loads(records.record_path(run, ids[name]).read_text())
        content = _changed(_changed(content, {"result": {"arrays": None}}), changes)
        path = tmp_path / "changed" / "records" / f"{'a' * 64}.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({**content, "id": "a" * 64}))
        return path.parent.parent

    return one


def _changed(content: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Nested tables are changed in part, unless they say what kind they are."""
    return content | {
        key: _changed(content[key], value)
        if isinstance(value, dict) and isinstance(content.get(key), dict) and "kind" not in value
        else value
        for key, value in changes.items()
    }


def figures(run: Path, cell_id: str) -> Summary:
    """The summary of an attack cell."""
    result = records.find(run, cell_id).attack
    assert result is not None
    return result.figures()


def line(text: str, heading: str) -> str:
    return next(row for row in text.splitlines() if row.startswith(f"{heading}:"))


def test_the_list_has_every_cell(run: Path, ids: dict[str, str]) -> None:
    text = output(command, run)
    for cell_id in ids.values():
        assert cell_id[:8] in text
    assert "3 cells in" in text
    rows = json.loads(output(command, run, "--json"))["cells"]
    by_id = {row["id"]: row for row in rows}
    cpl = by_id[ids["cpl"]]
    assert (cpl["point"], cpl["asr"]) == ("type-1", figures(run, ids["cpl"]).asr.value)
    assert by_id[ids["training"]]["attack"] == "training, 4 rounds"
    assert 0 <= by_id[ids["training"]]["accuracy"] <= 1


def test_an_attack_cell_in_words(run: Path, ids: dict[str, str]) -> None:
    summary = figures(run, ids["cpl"])
    text = output(command, ids["cpl"][:10], run)
    expected = {
        "attack": ["cpl on digits with dlg-lenet"],
        "point": ["type-1 ("],
        "grants": ["none"],
        "knowledge": ["plain: attacks as published"],
        "weights": ["untrained", "seed 0"],
        "federated": ["N = 20 clients", "B = 2"],
        "drawn": ["2 readings by seed 0"],
        "budget": ["30 evaluations"],
        "ASR": [cell_text.asr(summary), "of 4 examples (Wilson"],
        "prior mean": ["PSNR"],
        "prior nearest": ["PSNR"],
        "prior class-mean": ["PSNR"],
        "identified": [f"chance {share(summary.identification_chance, 1)}"],
        "medians": [f"{metric.label} {figure(metric, summary.median(metric))}" for metric in METRICS[:4]],
        "self-check": ["recognises the truth"],
        "reading": ["cosine 1 "],
        "failures": ["0 % diverged"],
        "provenance": ["bench 0.1"],
        "cost": ["MB"],
    }
    for heading, parts in expected.items():
        assert all(part in line(text, heading) for part in parts), heading
    assert summary.median(LPIPS) is not None or "LPIPS – (" in line(text, "medians")


def test_the_picture_is_written_below_the_run(run: Path, ids: dict[str, str]) -> None:
    path = run / "pictures" / f"{ids['cpl']}.png"
    assert str(path) in line(output(command, ids["cpl"], run), "picture")
    with Image.open(path) as image:
        assert image.size == (4 * 96 + 5 * 6, 2 * 96 + 3 * 6)
    assert json.loads(output(command, ids["cpl"], run, "--json"))["picture"] == str(path)
    assert "none" in line(output(command, ids["training"], run), "picture")


def test_open_launches_the_picture(run: Path, ids: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[str] = []
    monkeypatch.setattr(click, "launch", launched.append)
    output(command, ids["cpl"], run, "--open")
    assert launched == [str(run / "pictures" / f"{ids['cpl']}.png")]


def test_grants_and_attacks_without_a_gradient_are_said(run: Path, ids: dict[str, str]) -> None:
    text = output(command, ids["prior-mean"], run)
    assert "the true labels" in line(text, "grants")
    assert "matches no gradient" in line(text, "self-check")


def test_a_training_cell_in_words(run: Path, ids: dict[str, str]) -> None:
    record = records.find(run, ids["training"])
    text = output(command, ids["training"], run)
    result = record.training
    assert result is not None
    assert share(result.accuracy, 1) in line(text, "accuracy")
    assert cell_text.sparkline([value for _, value in result.curve]) in line(text, "curve")
    for round_, value in result.curve:
        assert f"round {round_:>4}  {share(value, 1)}" in text
    assert f"round-4.safetensors (sha256 {result.checkpoints[4][:8]})" in line(text, "checkpoint")
    assert "absent: " in line(text, "ε")


def test_the_newest_run_is_the_default(run: Path, ids: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    (run.parent.parent / "at").mkdir(exist_ok=True)
    monkeypatch.chdir(run.parent.parent / "at")
    assert "runs/: no run with records there" in fault(command, ids["cpl"])
    Path("runs").symlink_to(run.parent)
    assert "3 cells in runs/tiny" in output(command)
    assert ids["cpl"][:8] in output(command, ids["cpl"][:8])


@pytest.mark.parametrize(
    ("changes", "heading", "expected"),
    [
        ({"result": {"summary": {"lower_bound": True}}}, "ASR", "≥ "),
        ({"status": "n/a", "reason": "too many unknowns", "result": None}, "status", "n/a: too many unknowns"),
        ({"result": {"self_check": {"recognises_truth": False}}}, "self-check", "does not recognise"),
        ({"cell": {"knowledge": "adaptive"}}, "knowledge", "describes nothing, so it stayed plain"),
        ({"cell": {"grants": {"repeated_readings": 9}}}, "grants", "9 draws"),
        ({"cell": {"weights": {"kind": "file", "sha256": "f" * 64, "path": "x"}}}, "weights", "file (sha256 ffff"),
        (
            {"cell": {"weights": {"kind": "checkpoint", "training": "b" * 64, "round": 7}}},
            "weights",
            "after round 7 of training bbbbbbbb",
        ),
        ({"cost": {"reused_from": "c" * 64}}, "cost", "reused from cell cccccccc"),
        (
            {"provenance": {"attack": {"origin": "mine.py", "plugin": True, "sha256": "d" * 64}}},
            "provenance",
            "attack of plug-in mine.py (dddddddd)",
        ),
        ({"result": {"notes": ["out of memory: went on"]}}, "note", "out of memory"),
        ({"result": {"summary": {"medians": {"psnr_db": None}}}}, "medians", "PSNR –"),
        ({"cell": {"point": "\x1b[31mtype-9"}}, "point", "\ufffd[31mtype-9"),
    ],
)
def test_what_matters_is_said(write: Callable[..., Path], changes: Any, heading: str, expected: str) -> None:
    text = output(command, "aaaa", write(**changes))
    assert expected in line(text, heading)
    assert "\x1b" not in text


def test_mistakes(run: Path, write: Callable[..., Path], tmp_path: Path) -> None:
    assert "no record with an id that starts with 'zz'" in fault(command, "zz", run)
    assert "nowhere: no folder records/ there" in fault(command, "aa", "nowhere")
    assert "no record" in fault(command, "../../etc", run)
    changed = write(cell={"federated": [1]})
    assert ".json: not a record: cell.attack.federated: " in fault(command, "aa", changed)
    path = changed / "records" / f"{'a' * 64}.json"
    path.write_text("{")
    assert f"{path}: not a record" in fault(command, "aa", changed)


@pytest.mark.parametrize("change", [{"id": "../../../tmp/x"}, {"result": {"arrays": "../../secret"}}])
def test_a_record_cannot_name_a_file_elsewhere(run: Path, ids: dict[str, str], tmp_path: Path, change: Any) -> None:
    content = json.loads(records.record_path(run, ids["cpl"]).read_text())
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "abc.json").write_text(json.dumps(_changed(content, change)))
    assert "is no content hash" in fault(command, "abc", tmp_path)
    listed = output(command, tmp_path)
    assert "is no content hash" in listed and "1 of 1 records of" in listed and "0 cells in" in listed


def test_a_record_that_cannot_be_read_is_named_counted_and_passed_over(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "records" / f"{'0' * 64}.json").write_text("{")
    listed = output(command, tmp_path / "run")
    assert f"passed over: {tmp_path}/run/records/{'0' * 64}.json: not a record" in listed
    assert "1 of 4 records of" in listed and "3 cells in" in listed
    assert len(json.loads(CliRunner().invoke(command, [str(tmp_path / "run"), "--json"]).stdout)["cells"]) == 3


def test_a_list_is_filtered_and_sorted(run: Path) -> None:
    def shown(*options: str) -> list[str]:
        content = json.loads(CliRunner().invoke(command, [str(run), "--json", *options]).stdout)
        return [row["attack"].split(",")[0] for row in content["cells"]]

    assert shown("--attack", "cpl") == ["cpl"]
    assert shown("--point", "type-2") == ["prior-mean"]
    assert shown("--defense", "prune") == []
    assert sorted(shown("--defense", "none")) == sorted(shown("--attack", "p", "--attack", "tr"))
    assert shown("--sort", "attack") == ["cpl", "prior-mean", "training"]
    assert shown("--sort", "leak")[-1] == "training"
    assert "1 of 3 cells in" in output(command, run, "--attack", "cpl")


def test_a_cell_is_looked_for_in_every_run(
    run: Path, ids: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, tmp_path / "runs" / "old")
    (tmp_path / "runs" / "new" / "records").mkdir(parents=True)
    assert "runs/old/pictures" in output(command, ids["cpl"][:8])
    assert "no record in 2 runs has an id that starts with 'zz'" in fault(command, "zz")


def test_missing_arrays_are_one_line(write: Callable[..., Path]) -> None:
    assert "no such file; give an .npz; run the cell again" in fault(command, "aa", write(result={"arrays": "b" * 64}))


def test_a_sparkline_spans_0_to_1() -> None:
    assert cell_text.sparkline([0, 0.5, 1, 2, -1]) == "▁▅██▁"


def test_records_are_left_as_they_are(run: Path, ids: dict[str, str]) -> None:
    before = {path: path.read_bytes() for path in (run / "records").glob("*.json")}
    output(command, ids["cpl"], run)
    assert {path: path.read_bytes() for path in (run / "records").glob("*.json")} == before
    arrays = records.read_arrays(run, records.find(run, ids["cpl"]).arrays or "")
    assert np.isfinite(arrays["reconstruction"]).all()
    with pytest.raises(RecordError):
        records.find(run, "")
