"""`bench attack`: from a reading file to pictures, arrays and scores; mistakes are one line."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from tests.command import fault, output

from bench import api
from bench.cli.attack import command
from bench.cli.main import main
from bench.errors import BenchError, RecordError, UnknownName, WeightsError
from bench.own import files as reading_files


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """reading.npz of two digits, each a reading; bare.npz without its weights; truth.npz; w.safetensors."""
    folder = tmp_path_factory.mktemp("own")
    digits = load_digits()
    x, y = (digits.images[:40, None] / 16).astype(np.float32), digits.target[:40]
    model = api.build("dlg-lenet", shape=(1, 8, 8), classes=10, seed=3)
    each = [api.gradient(model, x[n : n + 1], y[n : n + 1]) for n in range(2)]
    gradients = {name: torch.stack([one[name] for one in each]) for name in each[0]}
    reading = api.reading(gradients, model=model, shape=(1, 8, 8), classes=10)
    api.save_reading(folder / "reading.npz", reading)
    whole = reading_files.load(folder / "reading.npz")
    reading_files.save(folder / "bare.npz", whole.values, whole.meta)
    save_file(model.state_dict(), folder / "w.safetensors")
    np.savez(folder / "truth.npz", inputs=x[:2], labels=y[:2])
    np.savez(folder / "public.npz", inputs=x[2:], labels=y[2:])
    return folder


def arguments(folder: Path, out: Path, *more: object, file: str = "reading.npz") -> list[object]:
    fixed = ["--reading", folder / file, "--model", "dlg-lenet", "--out", out, "--device", "cpu"]
    return [*fixed, "--evaluations", 100, *more]


def attack(folder: Path, out: Path, *more: object, file: str = "reading.npz") -> str:
    return output(command, *arguments(folder, out, *more, file=file))


def test_pictures_arrays_and_scores(folder: Path, tmp_path: Path) -> None:
    files = ("--truth", folder / "truth.npz", "--public", folder / "public.npz")
    text = attack(folder, tmp_path / "out", *files)
    assert "reading 0: ok, loss" in text and "labels 0\n" in text
    assert "leaked: 2 of 2 examples" in text
    assert "the prior-only baselines are of the public examples given" in text
    with np.load(tmp_path / "out" / "reconstruction.npz") as arrays:
        truth = np.load(folder / "truth.npz")["inputs"]
        error = ((np.clip(arrays["inputs"][:, 0], 0, 1) - truth) ** 2).mean((1, 2, 3))
        assert (-10 * np.log10(error) >= 20).all()
        assert arrays["labels"].tolist() == [[0], [1]]
        assert (arrays["evaluations"] <= 100).all()
    with Image.open(tmp_path / "out" / "pictures.png") as image:
        assert image.size == (2 * 96 + 18, 2 * 96 + 18)


def test_json_says_the_same(folder: Path, tmp_path: Path) -> None:
    text = attack(folder, tmp_path, "--truth", folder / "truth.npz", "--json", "--attack", "prior-mean")
    content: dict[str, Any] = json.loads(text)
    assert (content["attack"], content["point"]) == ("prior-mean", "type-2")
    assert [row["status"] for row in content["readings"]] == ["ok", "ok"]
    assert content["scores"]["summary"]["asr"]["value"] == 0
    assert content["scores"]["readings"][0]["examples"][0]["psnr_db"] < 20
    assert Path(content["files"]["pictures"]).is_file()
    assert Path(content["files"]["reconstruction"]).is_file()


def test_without_a_truth_nothing_is_scored(folder: Path, tmp_path: Path) -> None:
    assert json.loads(attack(folder, tmp_path, "--attack", "prior-mean", "--json"))["scores"] is None
    assert "nothing is scored" in attack(folder, tmp_path, "--attack", "prior-mean")


def test_the_truth_does_not_move_the_attack(folder: Path, tmp_path: Path) -> None:
    attack(folder, tmp_path / "a")
    attack(folder, tmp_path / "b", "--truth", folder / "truth.npz")
    a, b = (np.load(tmp_path / name / "reconstruction.npz")["inputs"] for name in "ab")
    assert (a == b).all()


def test_weights_come_from_the_file_or_beside_it(folder: Path, tmp_path: Path) -> None:
    attack(folder, tmp_path / "a", "--weights", folder / "w.safetensors", file="bare.npz")
    attack(folder, tmp_path / "b")
    a, b = (np.load(tmp_path / name / "reconstruction.npz")["inputs"] for name in "ab")
    assert (a == b).all()
    message = fault(command, *arguments(folder, tmp_path, file="bare.npz"))
    assert message.endswith("bare.npz: no weights of the model in the file; give the weights, too")


def test_parameters_are_checked_like_anywhere(folder: Path, tmp_path: Path) -> None:
    text = attack(folder, tmp_path, "--attack-param", "outer=1", "--attack-param", "start=grey", "--json")
    assert json.loads(text)["readings"][0]["evaluations"] <= 20


@pytest.mark.parametrize(
    ("more", "kind", "message"),
    [
        (["--attack-param", "outr=1"], BenchError, "unknown parameter 'outr'; did you mean 'outer'"),
        (["--attack-param", "outer"], BenchError, "--attack-param is KEY=VALUE, got 'outer'"),
        (["--model-param", "activation=step"], BenchError, "activation"),
        (["--model", "lenet"], UnknownName, "unknown model 'lenet'; did you mean 'dlg-lenet'"),
        (["--model", "cpl-lenet"], WeightsError, "weights: no tensor '6.weight'"),
        (["--attack", "cpll"], UnknownName, "unknown attack 'cpll'; did you mean 'cpl'"),
        (["--reading", "nowhere.npz"], RecordError, "nowhere.npz: no such file; give an .npz"),
        (["--weights", "nowhere.pt"], WeightsError, "nowhere.pt: no such weights file"),
        (["--truth", "{folder}/reading.npz"], RecordError, "reading.npz: no array 'inputs'; it holds value/"),
        (["--truth", "{folder}/public.npz"], BenchError, "truth has shape (38, 1, 8, 8); expected (2, 1, 1, 8, 8)"),
        (["--reading", "{folder}/truth.npz"], RecordError, "truth.npz: unknown array 'inputs'"),
    ],
)
def test_mistakes(folder: Path, tmp_path: Path, more: list[str], kind: type[BenchError], message: str) -> None:
    options = arguments(folder, tmp_path / "out", *(item.format(folder=folder) for item in more))
    assert message in fault(command, *options, kind=kind)
    assert not (tmp_path / "out").exists(), "nothing half-written"


def test_a_mistake_exits_with_2_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["bench", "attack", "--reading", "no.npz", "--model", "mlp"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", "bench: no.npz: no such file; give an .npz\n")
