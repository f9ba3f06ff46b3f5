"""`bench run` without a matrix file: what is typed, as the matrix that it is."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.command import in_this_process, output

from bench.cli.run import command
from bench.errors import BenchError
from bench.matrix.typed import entries, number_or_text, split, written


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["cpl,gradinv"], ["cpl", "gradinv"]),
        (["prune:share=.9"], [{"name": "prune", "share": 0.9}]),
        (
            ["prune:share=.9,at=example,none", "cpl:restarts=3"],
            [{"name": "prune", "share": 0.9, "at": "example"}, "none", {"name": "cpl", "restarts": 3}],
        ),
        (["mine:flag=true,other=1e-2"], [{"name": "mine", "flag": True, "other": 0.01}]),
        (["npz:path=a/b.npz"], [{"name": "npz", "path": "a/b.npz"}]),
    ],
)
def test_entries(texts: list[str], values: list[Any]) -> None:
    assert entries(texts, "--defense") == values


@pytest.mark.parametrize("assignments", [[], ["share=0.9"], ["share=0.9", "at=example"]])
def test_a_written_defense_is_read_again(assignments: list[str]) -> None:
    (read,) = entries([written("prune", assignments)], "--defense")
    name, params = split(read)
    assert (name, [f"{key}={value}" for key, value in params.items()]) == ("prune", assignments)


@pytest.mark.parametrize("text", ["", "a,,b", ":x=1", "a:x", "x=1", "a,x=1", "a:=1"])
def test_what_is_no_entry_is_one_line(text: str) -> None:
    with pytest.raises(BenchError, match="^--defense: .*write --defense NAME"):
        entries([text], "--defense")


def test_literals_are_parsed_and_other_text_stays() -> None:
    assert (number_or_text("nan!"), number_or_text("2"), number_or_text(".5")) == ("nan!", 2, 0.5)


TYPED = [
    "--attack",
    "cpl",
    "--defense",
    "prune:share=.9,gaussian:variance=1e-2",
    "--point",
    "type-1",
    "--seed",
    "1,2",
    "--knowledge",
    "adaptive",
    "--readings",
    "2",
    "--evaluations",
    "20",
    "--grant",
    "labels",
]


def test_the_cells_are_those_of_the_printed_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = output(command, *TYPED, "--print-matrix")
    assert not (tmp_path / "runs").exists()
    (tmp_path / "mine.toml").write_text(printed)
    plans = [
        json.loads(output(command, *words, "--dry-run", "--json"))["cells"]
        for words in (TYPED, ["--matrix", "mine.toml"])
    ]
    assert plans[0] == plans[1]
    assert len(plans[0]) == 6
    assert not (tmp_path / "runs").exists()
    in_this_process(monkeypatch)
    said = output(command, *TYPED, "--no-tracking", "--json")
    done = json.loads(said[said.index("{") :])
    folder = Path("runs") / "prune-gaussian-digits"
    assert Path(done["run"]) == tmp_path / folder
    assert (done["done"], done["crashed"]) == (6, 0)
    assert (folder / "matrix.toml").read_text() == printed
    again = json.loads(output(command, "--matrix", folder / "matrix.toml", "--out", folder, "--dry-run", "--json"))
    assert {cell["state"] for cell in again["cells"]} == {"done"}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--defense", "prunee"], "--defense: unknown defense 'prunee'; did you mean 'prune'?"),
        (["--defense", "prune:share=2"], "--defense: prune: share must be at most 1"),
        (["--defense", "prune", "--seed", "a"], "--seed: 'a' is no seed"),
        (["--dataset", "digits,adult"], "--dataset: pictures and tables need different models"),
        (["--matrix", "smoke", "--attack", "cpl"], "--attack is of a run without --matrix"),
        (["--matrix", "smoke", "--print-matrix"], "--print-matrix is of a run without --matrix"),
        (["--defense", "prune", "--point", "type-3"], "unknown point 'type-3'"),
        ([], "give --matrix FILE|PRESET, --cell RECORD, or --defense and --attack"),
    ],
)
def test_a_mistake_leaves_nothing_behind(
    words: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = CliRunner().invoke(command, words)
    assert made.exit_code != 0
    assert line in made.output + (str(made.exception) if isinstance(made.exception, BenchError) else "")
    assert list(tmp_path.iterdir()) == []
