"""`bench run --cell`: a published cell run again, and what differs named."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests import command
from tests.cells import answer, attack, training

from bench.cell import CheckpointWeights
from bench.cli.main import cli
from bench.record import store as records


def repeated(path: Path, *more: str) -> Result:
    return CliRunner().invoke(cli, ["run", "--cell", str(path), "--device", "cpu", *more])


def fault(path: Path) -> str:
    return command.fault(cli, "run", "--cell", path, "--device", "cpu")


@pytest.fixture
def run(tmp_path: Path) -> dict[str, Path]:
    """The records of a training, an attack on what it trained, and an attack on weights that nobody trained."""
    made = training()
    cells = {"training": made, "trained": attack(CheckpointWeights(training=made.id, round=2)), "fresh": attack()}
    folder = tmp_path / "run"
    return {name: records.record_path(folder, answer(cell, folder).id) for name, cell in cells.items()}


@pytest.mark.parametrize("name", ["training", "trained", "fresh"])
def test_every_kind_of_cell_comes_out_the_same(run: dict[str, Path], name: str) -> None:
    folder = run[name].parent.parent
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    done = repeated(run[name])
    assert (done.exit_code, done.output) == (0, f"cell {run[name].stem[:8]}: the same\n"), done.exception
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_figure_that_differs_is_named(run: dict[str, Path]) -> None:
    content = json.loads(run["fresh"].read_text())
    content["result"]["summary"]["readings"] = 3
    run["fresh"].write_text(json.dumps(content))
    done = repeated(run["fresh"])
    assert done.exit_code == 1
    assert "differs  result.summary.readings: 3 → 2\n" in done.output
    assert done.output.endswith(": 1 field differs\n")
    said = json.loads(repeated(run["fresh"], "--json").output)
    assert (said["same"], len(said["differs"]), said["provenance"]) == (False, 1, [])


def test_without_its_training_it_cannot_be_answered(run: dict[str, Path]) -> None:
    run["training"].unlink()
    assert "cannot be repeated here: training " in fault(run["trained"])
    shutil.rmtree(run["trained"].parent.parent / "weights")
    assert "cannot be repeated here" in fault(run["trained"])


def test_an_altered_cell_is_not_answered(run: dict[str, Path]) -> None:
    content = json.loads(run["fresh"].read_text())
    content["cell"]["seed"] = 9
    run["fresh"].write_text(json.dumps(content))
    assert "its id is not the hash of its cell" in fault(run["fresh"])


@pytest.mark.parametrize(("field", "wrong"), [("environment", 3), ("provenance", []), ("result", 3), ("cell", {})])
def test_a_record_whose_fields_are_none_is_one_line(run: dict[str, Path], field: str, wrong: object) -> None:
    run["fresh"].write_text(json.dumps(json.loads(run["fresh"].read_text()) | {field: wrong}))
    assert f"not a record: {field}" in fault(run["fresh"])


def test_what_a_stranger_wrote_is_shown_sanitized(run: dict[str, Path]) -> None:
    content = json.loads(run["fresh"].read_text())
    content["environment"]["torch"] = "\x1b]0;x\x07"
    content["result"]["notes"] = ["\x1b[2J"]
    run["fresh"].write_text(json.dumps(content))
    done = repeated(run["fresh"])
    assert done.exit_code == 1
    assert all(line.isprintable() for line in done.output.splitlines())


@pytest.mark.parametrize("option", ["--time-limit=5s", "--out=x", "--jobs=2", "--scale=full"])
def test_options_of_a_matrix_are_not_passed_over(run: dict[str, Path], option: str) -> None:
    done = repeated(run["fresh"], option)
    assert done.exit_code == 2
    assert f"{option.partition('=')[0]} is of a matrix; leave it out" in done.output
