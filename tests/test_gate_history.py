"""The gate's history: a line per commit, which two branches may append, a page without outside parts, a badge."""

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from tests.test_gate import run
from tests.test_gate_base import MAIN, call, commit, git
from tests.test_gate_base import project as project
from tests.test_gate_forms import HOSTILE, hostile

from bench.cli.main import cli
from bench.errors import BenchError
from bench.gate import history
from bench.gate.verdict import verdict

STEADY, WEAK = verdict(run(0.2), run(0.2)), verdict(run(0.2), run(0.9, draw=1, snr=16.0))


def written(path: Path, *lines: history.Line) -> str:
    for line in lines:
        history.add(path, line)
    return path.read_text("utf-8")


def test_a_history_is_sorted_and_has_a_line_for_each_commit(tmp_path: Path) -> None:
    first, later = history.line(STEADY, "b" * 40, "2026-01-02"), history.line(WEAK, "a" * 40, "2026-01-03")
    text = written(tmp_path / "1.jsonl", later, first, later)
    assert text == written(tmp_path / "2.jsonl", first, later), "the order of additions does not matter"
    assert history.read(tmp_path / "1.jsonl") == [first, later]
    assert len(text.splitlines()) == 2
    changed = replace(later, outcome="pass")
    assert history.read(Path(tmp_path / "1.jsonl"))[1] == later
    written(tmp_path / "1.jsonl", changed)
    assert history.read(tmp_path / "1.jsonl") == [first, changed]


def test_two_branches_append_and_merge_without_a_conflict(project: Path) -> None:
    (project / ".gitattributes").write_text("*.jsonl merge=union\n")
    call("runs/same", "--history", "h.jsonl")
    commit("begin")
    for name in ("one", "two"):
        git("checkout", "-qb", name, "feature")
        (project / name).write_text(name)
        commit(name)
        result = call("runs/same", "--history", "h.jsonl")
        assert result.exit_code == 0, result.output
        commit(f"history of {name}")
    git("merge", "-q", "--no-edit", "one")
    lines = history.read(project / "h.jsonl")
    assert len(lines) == 3 and {line.outcome for line in lines} == {"pass"}
    assert {line.commit for line in lines} <= set(git("log", "--all", "--format=%H").split())
    assert MAIN in git("branch", "--list")


@pytest.mark.parametrize("content", ["{", "[]", '{"commit": 3}', "\x00"])
def test_a_damaged_line_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "h.jsonl"
    written(path, history.line(STEADY, "a", "2026"))
    path.write_text(path.read_text("utf-8") + content + "\n", "utf-8")
    with pytest.raises(BenchError, match=r"h.jsonl:2: no line of a history") as raised:
        history.read(path)
    assert "\n" not in str(raised.value)
    with pytest.raises(BenchError, match="begins it"):
        history.read(tmp_path / "none")


def test_the_page_shows_every_comparison_with_the_margin_and_nothing_from_outside(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    for number in range(12):
        result = WEAK if number > 9 else STEADY
        written(path, history.line(result, f"{number:040d}", f"2026-01-{number + 1:02d}T00:00:00Z"))
    done = CliRunner().invoke(
        cli, ["gate", "history", str(path), "--html", str(tmp_path / "p.html"), "--badge", str(tmp_path / "b.svg")]
    )
    assert done.exit_code == 0 and len(done.output.splitlines()) == 12, done.output
    text = (tmp_path / "p.html").read_text("utf-8")
    charts = re.findall(r"<figure>.*?</figure>", text, re.DOTALL)
    assert len(charts) == len(STEADY.comparisons)
    assert all(chart.count("<circle") == 12 and chart.count("<rect") == 1 for chart in charts)
    assert history._colour(history.read(path)[-1]) in charts[0], "the weaker comparison comes first"
    assert "reading_cosine" in charts[-1] and not re.search(r"https?:|<script|<link|@import|src=", text)
    assert (
        ElementTree.fromstring((tmp_path / "b.svg").read_text())
        .get("aria-label", "")
        .startswith("leakage gate: weaker")
    )
    with_strip = history.page(history.read(path), "x", b"\x89PNG")
    assert re.findall(r'src="[^"]*"', with_strip) == ['src="data:image/png;base64,iVBORw=="']
    badge = json.loads(history.badge_json(history.read(path)[0]))
    assert badge["message"] == f"holds, {len(STEADY.comparisons)} comparisons" and badge["schemaVersion"] == 1


def test_names_of_strangers_and_unbounded_figures_stay_inside_the_page(tmp_path: Path) -> None:
    made = hostile()
    rows = [replace(row, upper=float("inf")) for row in made.comparisons]
    line = history.line(replace(made, comparisons=tuple(rows)), "c" * 40, "2026")
    assert history.read(Path(written(tmp_path / "h", line) and tmp_path / "h")) == [line]
    text = history.page([line], HOSTILE[3])
    assert "<img" not in text and "\x1b" not in text and "\u202e" not in text
    with pytest.raises(BenchError, match="empty"):
        history.page([], "x")


def test_a_folder_named_history_is_still_a_run(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["gate", "./history", "--baseline", str(tmp_path / "none.json")])
    assert "no such file" in str(result.exception) or "no such file" in result.output
