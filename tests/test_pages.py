"""The pages by hand: paths exist, pages named in messages exist, notebooks and examples run as they stand."""

import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import api

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*.md"))]
FOLDERS = ("attacks", "bench", "datasets", "defenses", "docs", "leaderboard", "tests")
PATH = re.compile(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]*)`")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")
NAMED = re.compile(r"\b((?:docs/)?[A-Z]+\.md)\b")
PLACEHOLDERS = ("NAME", "PRESET")  # of a path that a reader fills in
GENERATED = ("docs/RECORDS.md", "docs/DEFENSES.md", "docs/board.html")  # by docs/generate.py


def _sources() -> Iterator[Path]:
    for folder in ("attacks", "bench", "datasets", "defenses", "leaderboard"):
        yield from (path for kind in ("*.py", "*.html") for path in (ROOT / folder).rglob(kind))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_on_a_page_exist(page: Path) -> None:
    named = PATH.findall(page.read_text("utf-8"))
    filled = [path for path in named if not any(word in path for word in PLACEHOLDERS)]
    assert [path for path in filled if not (ROOT / path).exists() and path not in GENERATED] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_linked_files_of_a_page_exist(page: Path) -> None:
    """The site's build checks anchors, and pages that it generates."""
    linked = LINK.findall(page.read_text("utf-8"))
    assert [path for path in linked if not (page.parent / path).exists() and not _generated(page, path)] == []


def _generated(page: Path, path: str) -> bool:
    target = (page.parent / path).resolve().relative_to(ROOT)
    return target.as_posix() in GENERATED or target.parent == Path("docs/results")


def test_pages_that_the_code_names_exist() -> None:
    named = {(path, name) for path in _sources() for name in NAMED.findall(path.read_text("utf-8"))}
    assert any(name == "docs/FLAGS.md" for _, name in named)
    assert [(str(path), name) for path, name in named if not (ROOT / name).exists() and name not in GENERATED] == []


def _executed(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(folder)
    cells = json.loads((DOCS / "notebooks" / f"{name}.ipynb").read_text("utf-8"))["cells"]
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{name}.ipynb", "exec"), names)
    return names


def test_the_notebook_on_a_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = _executed("own_gradient", tmp_path, monkeypatch)
    right, wrong, single, _, several = capsys.readouterr().out.splitlines()
    assert right == "explains what was sent: cosine 1.0000, scale 1.000"
    assert wrong.startswith("does not explain what was sent")
    assert names["scores"].summary.asr.value == 1.0 and single.startswith("reconstructed: 1.0")
    assert several == "reconstructed: 1.0"
    assert (tmp_path / "leak.png").stat().st_size > 0


@pytest.mark.slow
def test_the_notebook_on_a_defense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = _executed("own_defense", tmp_path, monkeypatch)["table"].set_index(["share sent", "attacker"])["asr"]
    undeclared, declared = capsys.readouterr().out.splitlines()
    assert undeclared.startswith("does not explain what was sent")
    assert declared == "explains what was sent: cosine 1.0000, scale 1.000"
    assert table[1.0, "plain"] == 1.0
    assert table[0.1, "plain"] == 0.0 and table[0.1, "adaptive"] == 1.0


def test_the_attack_on_the_page_runs_and_reconstructs() -> None:
    code = (DOCS / "recipes" / "my_attack.py").read_text("utf-8")
    assert f"```python\n{code}```" in (DOCS / "ATTACK.md").read_text("utf-8")
    attack = runpy.run_path(str(DOCS / "recipes" / "my_attack.py"))["SmoothMatch"]()
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.Sigmoid(), torch.nn.Linear(32, 10)
    )
    x, y = torch.rand(1, 1, 8, 8), torch.tensor([3])
    reading = api.reading(api.gradient(model, x, y), model=model, shape=(1, 8, 8), classes=10)
    claim = api.attack(reading, attack, evaluations=600)
    psnr = api.score(claim, x, y).summary.medians["psnr_db"]
    assert psnr is not None and psnr > 30
