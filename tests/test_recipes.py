"""The recipes of `docs/recipes` run as they stand, with the real libraries, and the pages show them."""

import ast
import os
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parent.parent
RECIPES = ROOT / "docs" / "recipes"


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(folder)
    torch.manual_seed(0)
    return runpy.run_path(str(RECIPES / name), run_name="__main__")


def test_a_plain_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run("loop.py", tmp_path, monkeypatch)
    said = capsys.readouterr().out.splitlines()
    assert said == ["explains what was sent: cosine 1.0000, scale 1.000", "leaked: 1.0"] * 2
    assert (tmp_path / "leak.png").stat().st_size > 0


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # Opacus' own
def test_opacus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("opacus")
    names = run("with_opacus.py", tmp_path, monkeypatch)
    inside, leaked_inside, outside, leaked_outside = capsys.readouterr().out.splitlines()
    assert inside == "explains what was sent: cosine 1.0000, scale 1.000"
    assert leaked_inside == "leaked: 1.0"
    assert outside.startswith("explains what was sent, up to the described noise: cosine 0.")
    assert leaked_outside.startswith("leaked: ")
    hooks = [hook for layer in names["step"].model.modules() for hook in layer._forward_hooks.values()]
    assert hooks == []
    assert type(names["step"].model).__name__ == "Sequential"


@pytest.mark.filterwarnings("ignore")  # Flower's own
def test_flower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The real `ClientApp`, called in this process with the mod in its chain."""
    pytest.importorskip("flwr", reason="tox -e flower")
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    from flwr.app import ArrayRecord, Context, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 2, 3  # what the runtime sets
    recipe = run("with_flower.py", tmp_path, monkeypatch)
    context = Context(run_id=1, node_id=2, node_config={}, state=RecordDict(), run_config={})
    content = RecordDict({"arrays": ArrayRecord(recipe["network"]().state_dict())})
    message = Message(content=content, dst_node_id=2, message_type="train")
    recipe["app"](message, context)
    said = capsys.readouterr().out.splitlines()
    assert said == ["explains what was sent: cosine 1.0000, scale 1.000", "leaked: 1.0"]
    assert (tmp_path / "reading.npz").is_file()


def test_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run("text.py", tmp_path, monkeypatch)
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == ["explains what was sent: cosine 1.0000, scale 1.000", "word for word: 1.0"]
    assert said[2:] == [
        "my soup was cold .",
        "the film was kind of dull .",
        "what a waiter , the boss liked the film .",
    ]


def test_no_recipe_shadows_a_package_when_run_in_its_folder() -> None:
    """`python docs/recipes/NAME.py` puts the folder first on the import path."""
    imported = {
        (node.module or "").partition(".")[0] if isinstance(node, ast.ImportFrom) else alias.name.partition(".")[0]
        for file in RECIPES.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert imported & {file.stem for file in RECIPES.glob("*.py")} == set()
    assert {"opacus", "torch", "bench"} <= imported


@pytest.mark.parametrize("name", ["loop", "with_opacus", "with_flower", "text"])
def test_the_page_shows_the_recipe_as_it_runs(name: str) -> None:
    page = (ROOT / "docs" / "OWN.md").read_text("utf-8")
    code = (RECIPES / f"{name}.py").read_text("utf-8")
    assert f"```python\n{code}```" in page, f"docs/OWN.md: paste docs/recipes/{name}.py into it"
