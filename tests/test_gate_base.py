"""The gate against a base revision: what a change alters in its own baseline, and cells that pair by the request."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from tests.records import attack_cell
from tests.test_gate import MATRIX, attacked, run

from bench.cell import CheckpointWeights, Entry
from bench.cli import gating
from bench.cli.gate import command as gate
from bench.cli.main import cli
from bench.errors import BenchError
from bench.gate import baseline
from bench.gate.occasion import Occasion
from bench.gate.pairing import differences, partners
from bench.gate.verdict import verdict
from bench.matrix.entries import registered
from bench.matrix.read import of_document, read
from bench.record import request, store
from bench.record.request import Request
from bench.record.schema import Record
from bench.registry import entries as registry

MAIN = "main"


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def commit(words: str = "change") -> None:
    git("add", "-A")
    git("commit", "-qm", words)


def write_run(folder: Path, records: list[Record], asked: Request) -> None:
    for record in records:
        store.write(folder, record)
    request.save(folder, asked)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository as a user has it, on a branch beside `main`, with a baseline of planted records and runs outside."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(registry, "_added", {})
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "someone")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "someone@example.org")
    git("init", "-q", "-b", MAIN)
    (folder / "m.toml").write_text(MATRIX)
    asked = Request(matrix="m.toml", plugins=("mine.py",), defenses=("my-noise",))
    made = baseline.of_run(run(0.1), asked, {})
    older = baseline.of_run(run(0.1, snr=9.5), asked, {})
    baseline.write(folder / "gate.json", baseline.replacing(made, older))
    (folder / ".gitignore").write_text("runs/\n")
    commit("the gate")
    git("checkout", "-qb", "feature")
    write_run(folder / "runs" / "same", run(0.1), asked)
    write_run(folder / "runs" / "weak", run(0.9, draw=1, snr=16.0), asked)
    return folder


def call(*arguments: str) -> Result:
    return CliRunner().invoke(gate, ["--baseline", "gate.json", *arguments])


def rewrite(records: list[Record], **changes: Any) -> None:
    """Write the baseline anew, as the author of a change may."""
    asked = changes.pop("request", Request(matrix="m.toml", plugins=("mine.py",), defenses=("my-noise",)))
    made = baseline.of_run(records, asked, changes.pop("margins", {}))
    baseline.write(Path("gate.json"), replace(made, **changes))


def test_an_untouched_baseline_is_the_base_revisions(project: Path) -> None:
    result = call("runs/same", "--base", MAIN)
    assert result.exit_code == 0 and "differs from the baseline" not in result.output, result.output
    assert call("runs/weak", "--base", MAIN).exit_code == 1


def test_a_defense_weakened_with_its_baseline_is_refused_and_the_change_listed_first(project: Path) -> None:
    """The first line of the issue's table: the change brings the baseline that it passes against."""
    rewrite(run(0.9, draw=1, snr=16.0))
    commit()
    assert call("runs/weak").exit_code == 0, "against its own baseline every change passes"
    result = call("runs/weak", "--base", MAIN)
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[0].startswith("the baseline differs from the baseline of main")
    said = "\n".join(lines[:8])
    assert "of 8, 8 have other results" in said and "oldest list dropped" in said
    assert "weaker in the new baseline: prune, type-2: asr" in said
    content = json.loads(call("runs/weak", "--base", MAIN, "--json").stdout)
    assert content["outcome"] == "weaker" and content["occasion"]["base"] == MAIN


def test_an_intended_change_is_accepted_with_a_reason_that_is_printed(project: Path) -> None:
    rewrite(run(0.9, draw=1, snr=16.0))
    commit()
    result = call("runs/weak", "--base", MAIN, "--accept-baseline", "the old noise hid nothing: issue 7")
    assert result.exit_code == 0, result.output
    assert "the old noise hid nothing: issue 7" in result.output and "8 have other results" in result.output
    unused = call("runs/same", "--baseline", "gate.json", "--accept-baseline", "why")
    assert unused.exit_code == 2


def test_a_loosened_margin_is_said_first_and_refused(project: Path) -> None:
    made = baseline.read(Path("gate.json"))
    baseline.write(Path("gate.json"), replace(made, margins={**made.margins, "asr": 0.9}))
    commit()
    result = call("runs/same", "--base", MAIN)
    assert result.exit_code == 1 and "margin asr 0.1 → 0.9" in "".join(result.output.splitlines()[:2])
    assert "gate changed: the baseline differs" in result.output
    assert call("runs/same", "--base", MAIN, "--accept-baseline", "agreed on Monday").exit_code == 0


def test_a_smaller_matrix_and_another_plugin_list_are_listed(project: Path) -> None:
    (project / "m.toml").write_text(MATRIX.replace("[0, 1, 2, 3]", "[0]").replace("readings = 8", "readings = 2"))
    rewrite(run(0.1)[:4], request=Request(matrix="m.toml", plugins=("lax.py",)))
    commit()
    result = call("runs/same", "--base", MAIN)
    assert result.exit_code == 1
    for line in (
        "matrix m.toml: axes.seed without 1, 2, 3",
        "matrix m.toml: readings 8 → 2",
        "plug-in list mine.py → lax.py",
        "list of added defenses my-noise → none",
        "records: of 8, 4 gone",
    ):
        assert line in result.output, line
    (project / "m.toml").write_text(f"# a remark\n{MATRIX}")
    git("checkout", MAIN, "--", "gate.json")
    assert call("runs/same", "--base", MAIN).exit_code == 0, "a remark changes no cell"


def test_the_base_revisions_matrix_is_read_and_not_the_checkouts(project: Path) -> None:
    (project / "m.toml").write_text("title = 'empty'\n")
    text = subprocess.run(["git", "show", "main:m.toml"], check=True, capture_output=True).stdout
    assert len(read("m.toml", more_defenses=("prune",), text=text).attacks) == 8


@pytest.mark.parametrize("kind", ["ref", "option", "path", "shallow", "absent", "none", "outside", "matrix"])
def test_mistakes_are_a_line_with_the_remedy(project: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base, words = MAIN, ""
    if kind in ("ref", "option"):
        base, words = ("nowhere" if kind == "ref" else "--output=x"), "no such revision; run git fetch"
    elif kind == "shallow":
        commit_count = git("rev-list", "--count", "HEAD").strip()
        (project / "more").write_text(commit_count)
        commit()
        git("clone", "-q", "--depth", "1", f"file://{project}", "../shallow")
        monkeypatch.chdir(project.parent / "shallow")
        base, words = "HEAD~1", "fetch-depth: 0"
    elif kind == "absent":
        git("rm", "-q", "--cached", "gate.json")
        git("commit", "-qm", "forget")
        base, words = "HEAD", '--accept-baseline "the first baseline"'
    elif kind == "none":
        monkeypatch.setenv("PATH", str(project))
        words = "install git"
    elif kind == "outside":
        monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(project.parent))
        monkeypatch.chdir(project.parent)
        words = "not a git repository"
    elif kind == "path":
        (project.parent / "gate.json").write_bytes((project / "gate.json").read_bytes())
        words = "outside the repository"
    else:
        git("rm", "-q", "m.toml")
        git("commit", "-qm", "forget")
        base, words = "HEAD", "the matrix m.toml is not in that revision"
    arguments = ["runs/same", "--baseline", "../gate.json" if kind == "path" else "gate.json", "--base", base]
    error = CliRunner().invoke(gate, arguments).exception
    assert isinstance(error, BenchError), error
    assert words in str(error) and "\n" not in str(error)


def test_a_dirty_tree_and_a_base_that_is_ahead_are_only_said(project: Path) -> None:
    (project / "m.toml").write_text(f"{MATRIX}\n")
    result = call("runs/same", "--base", MAIN)
    assert result.exit_code == 0 and "working tree differs" in result.output
    git("checkout", "-q", "m.toml")
    git("checkout", "-q", MAIN)
    rewrite(run(0.1), margins={"asr": 0.2})
    commit()
    git("checkout", "-q", "feature")
    assert "merge main first" in call("runs/same", "--base", MAIN).output


def step(value: float, **more: Any) -> Entry:
    return Entry(name="my-round", params={"step": value, **more})


def asked_for(new: Entry, *written: str) -> dict[tuple[str, str], set[tuple[str, ...]]]:
    return {("defense", str(new)): {written}}


@pytest.mark.parametrize(
    ("new", "written", "words"),
    [
        (step(0.0001), (), "my-round: step 0.3 → 0.0001"),
        (Entry(name="my-round", params={"grid": 0.3}), (), "my-round: step=0.3 → grid=0.3"),
        (step(0.3, bits=2), ("step",), "my-round: new bits=2"),
    ],
)
def test_a_changed_renamed_or_new_default_is_compared_and_named(
    new: Entry, written: tuple[str, ...], words: str
) -> None:
    """The second line of the issue's table: nobody wrote the parameter."""

    def records(defense: Entry, snr: float) -> list[Record]:
        made = run(0.0, snr=snr)
        return [replace(r, cell=r.cell.model_copy(update={"defense": defense})) for r in made]

    before, after = records(step(0.3), 10.0), records(new, 40.0)
    assert verdict(before, after).exit_code == 3, "without the words of the request no cell pairs"
    result = verdict(before, after, asked=asked_for(new, *written))
    assert result.exit_code == 1 and result.parameters == (words,) and result.cells == 8
    assert not result.unpaired
    assert verdict(before, records(new, 10.0), asked=asked_for(new, *written)).exit_code == 0
    others = verdict(before, after, asked=asked_for(new, *new.params))
    assert others.exit_code == (1 if written == ("step",) and "bits" not in new.params else 3), "another wish"


@pytest.mark.slow
def test_the_error_rates_hold_for_cells_that_pair_by_the_request() -> None:
    """200 places with a changed default, 0.5 dB of noise: without a gain none is weaker, with 6 dB all are."""
    generator = np.random.default_rng(5)

    def noisy(step: float, gain: float) -> list[Record]:
        return [
            attacked(
                [[False]],
                seed=seed,
                defense=Entry(name=f"d{place}", params={"step": step}),
                snr=float(generator.normal(gain, 0.5)),
            )
            for place in range(200)
            for seed in range(8)
        ]

    before = noisy(0.3, 0.0)
    for gain, weaker in ((0.0, 0), (6.0, 200)):
        after = noisy(0.1, gain)
        asked = {("defense", str(record.cell.defense)): {()} for record in after}
        rows = [row for row in verdict(before, after, asked=asked).comparisons if row.metric == "reading_snr"]
        assert (len(rows), sum(row.outcome == "weaker" for row in rows)) == (200, weaker)


def test_two_cells_that_fit_are_not_confused() -> None:
    """A default that becomes a value which the matrix writes, and the other way round: nothing passes unseen."""
    cells = [attack_cell(defense=step(value), seed=seed) for value in (0.3, 0.1) for seed in (0, 1)]
    old = {cell.id: cell for cell in cells}
    # asked: my-round, and my-round(step=.1); the default falls to .1
    new = {cell.id: cell for cell in cells[2:]}
    asked = {("defense", str(step(0.1))): {(), ("step",)}}
    assert {old[a].seed == new[b].seed for a, b in partners(old, new, asked).items()} == {True}
    assert len(partners(old, new, asked)) == 4
    # two cells fit the same words: no guess
    fresh = attack_cell(defense=step(0.2))
    assert not partners(old, {fresh.id: fresh}, asked_for(step(0.2)))


def test_a_run_folder_with_cells_from_before_the_change_hides_nothing(project: Path) -> None:
    """The folder that CI keeps between jobs holds the old default's cells, too."""
    (project / "m.toml").write_text(MATRIX.replace('attack = ["prior-mean"]', 'attack = ["cpl"]'))
    asked = Request(matrix="m.toml", defenses=("prune",))
    names = {"defense": "prune", "attack": "cpl", "model": "dlg-lenet"}
    entries = {axis: registered(axis, name, registry) for axis, name in names.items()}
    prune = entries["defense"]

    def records(share: float, rate: float) -> list[Record]:
        defense = prune.model_copy(update={"params": {**prune.params, "share": share}})
        changes = {**entries, "defense": defense}
        return [replace(r, cell=r.cell.model_copy(update=changes)) for r in run(rate, draw=1)]

    default = prune.params["share"]
    baseline.write(Path("gate.json"), baseline.of_run(records(0.95, 0.0), asked, {}))
    write_run(project / "runs" / "both", [*records(0.95, 0.0), *records(default, 0.9)], asked)
    result = call("runs/both")
    assert result.exit_code == 1, result.output
    assert f"prune: share 0.95 → {default}" in result.output.splitlines()[0]


def test_cells_of_a_cascade_and_at_a_checkpoint_pair_with_their_predecessors() -> None:
    def chain(attack: Entry) -> list[Any]:
        first = attack_cell(attack=attack)
        trained = CheckpointWeights(training=first.id, round=3)
        return [first, attack_cell(after=(first.id,), attack="dlg"), attack_cell(weights=trained, attack="dlg")]

    then, now = (chain(Entry(name="cpl", params={"outer": outer})) for outer in (300, 100))
    old, new = ({cell.id: cell for cell in cells} for cells in (then, now))
    found = partners(old, new, {("attack", str(now[0].attack)): {()}})
    assert found == dict(zip(old, new, strict=True))
    assert [*differences(then[0], now[0])] == ["cpl: outer 300 → 100"]


def test_a_matrix_keeps_what_was_written() -> None:
    matrix = of_document(
        {
            "title": "t",
            "axes": {
                "dataset": ["digits"],
                "model": ["dlg-lenet"],
                "attack": ["prior-mean"],
                "point": ["type-1"],
                "defense": ["prune", {"name": "prune", "share": 0.5}],
            },
        },
        "m.toml",
    )
    default = registered("defense", "prune", registry)
    half = registered("defense", {"name": "prune", "share": 0.5}, registry)
    assert matrix.asked["defense", str(default)] == {()} and matrix.asked["defense", str(half)] == {("share",)}


PLUGIN = """
from dataclasses import dataclass
import torch
from bench.defenses.base import Defense, Transform
from bench.parameters import parameter

@dataclass(frozen=True, kw_only=True)
class Grid(Transform):
    step: float

    def apply(self, tensors, context):
        return {name: torch.round(value / self.step) * self.step for name, value in tensors.items()}

@dataclass(frozen=True, kw_only=True)
class MyRound(Defense):
    reference = "a test"
    stages = ("client",)
    step: float = parameter(0.3, "grid's step", source="ours", low=0)

    def transforms(self, setting):
        return {"client": (Grid(step=self.step),)}
"""


def test_a_defense_has_the_place_of_its_class_if_the_repository_holds_it(project: Path) -> None:
    """A plug-in's class; for an installed or built-in defense, and for an unknown name, the baseline file."""
    (project / "mine.py").write_text(PLUGIN)
    registry.add_plugin("mine.py")
    places = gating.places({"my-round", "prune", "unknown"})
    assert list(places) == ["my-round"] and places["my-round"].path == "mine.py"
    assert PLUGIN.splitlines()[places["my-round"].line - 1].startswith("class MyRound")
    occasion = Occasion(baseline="gate.json", places=places)
    for name in ("prune(share=0.7)", "my-round(step=0.3)"):
        assert (project / occasion.place(name).path).is_file()


@pytest.mark.slow
def test_the_table_of_the_issue_with_real_runs(project: Path) -> None:
    """A defense of a user: its default weakened; then with its baseline made anew; then accepted."""
    (project / "mine.py").write_text(PLUGIN)
    (project / "gate.json").unlink()
    typed = "run --matrix m.toml --plugin mine.py --defense my-round --no-tracking --jobs 1 --out"
    assert CliRunner().invoke(cli, [*typed.split(), "runs/first"]).exit_code == 0
    assert CliRunner().invoke(gate, ["runs/first", "--write-baseline", "gate.json"]).exit_code == 0
    commit()
    git("branch", "-qf", MAIN)
    same = call("--base", MAIN, "--jobs", "1")
    assert same.exit_code == 0, same.output
    registry.drop_plugins()  # a command is a process of its own
    for module in [name for name in sys.modules if name.startswith("bench_plugin_mine")]:
        del sys.modules[module]
    (project / "mine.py").write_text(PLUGIN.replace("parameter(0.3", "parameter(0.0001"))
    weak = call("--base", MAIN, "--jobs", "1")
    assert weak.exit_code == 1, weak.output
    changed = "changed in the code, and the matrix does not set this: my-round: step 0.3 → 0.0001"
    assert " ".join(weak.output.split()).startswith(changed), "whole, at every width of the terminal"
    assert "not in the run" not in weak.output
    (project / "gate.json").unlink()
    assert CliRunner().invoke(cli, [*typed.split(), "runs/second"]).exit_code == 0
    assert CliRunner().invoke(gate, ["runs/second", "--write-baseline", "gate.json"]).exit_code == 0
    refused = call("--base", MAIN, "--jobs", "1")
    assert refused.exit_code == 1 and "differs from the baseline of main" in refused.output.splitlines()[0]
    accepted = call("--base", MAIN, "--jobs", "1", "--accept-baseline", "a finer grid is wanted")
    assert accepted.exit_code == 0 and "a finer grid is wanted" in accepted.output, accepted.output
