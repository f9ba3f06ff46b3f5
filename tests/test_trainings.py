"""Trainings as people see them: scales and limits of a matrix, the table, progress, `bench privacy`."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.command import in_this_process
from tests.records import printed

from bench.answer.context import RunContext, TrainingProgress
from bench.cell import AnyCell, TrainingCell
from bench.cli.main import cli
from bench.errors import MatrixError
from bench.leaderboard.forms import terminal
from bench.leaderboard.trainings import missing, trainings
from bench.matrix.expand import expand
from bench.matrix.published import PublishedFigures
from bench.matrix.read import read
from bench.record.schema import Record
from bench.record.store import records
from bench.sweep.observer import Observer
from bench.sweep.plan import Resolver, schedule
from bench.sweep.processes import ProcessPool
from bench.sweep.session import run_schedule

MATRIX = """
title = "two sizes"
scales = ["small", "full"]

[[train]]
scale = "small"
dataset = ["digits"]
model = [{ name = "dlg-lenet", width = 0.1 }]
federated = [{ algorithm = "fedavg", clients = 20, per_round = 4, steps = 3, batch = 4, client_examples = 40 }]
defense = ["none", { name = "fed-cdp", sigma = 1.0, noise = "code" }]
rounds = [4]
test_every = 2

[[train]]
scale = "full"
dataset = ["digits"]
model = ["dlg-lenet"]
rounds = [9]
until_accuracy = 0.5
until_epsilon = 2

[[published]]
dataset = "digits"
defense = "none"
accuracy = 0.98
source = "a paper, Table VI"

[[published]]
dataset = "digits"
defense = "fed-sdp"
accuracy = 0.91
epsilon = 0.8
source = "a paper, Table VI"
"""
PAPER = PublishedFigures(
    where={"dataset": {"name": "digits"}, "defense": {"name": "none"}}, figures={"accuracy": 0.98}, source="P"
)


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("matrix") / "sizes.toml"
    path.write_text(MATRIX)
    return path


@pytest.fixture(scope="module")
def ran(matrix: Path) -> tuple[Path, str]:
    run = matrix.parent / "run"
    with pytest.MonkeyPatch.context() as patch:
        in_this_process(patch)
        done = CliRunner().invoke(cli, ["run", "--matrix", str(matrix), "--out", str(run), "--no-tracking"])
    assert done.exit_code == 0, done.output
    return run, done.output


def cells(matrix: Path, scale: str | None) -> list[TrainingCell]:
    found = [item.cell for item in expand(read(matrix, scale=scale), Resolver(None).data)]
    return [cell for cell in found if isinstance(cell, TrainingCell)]


def test_a_scale_picks_its_trainings_and_the_first_is_the_default(matrix: Path) -> None:
    assert read(matrix).scale == "small"
    assert cells(matrix, None) == cells(matrix, "small")
    assert [cell.rounds for cell in cells(matrix, "small")] == [4, 4]
    (full,) = cells(matrix, "full")
    assert (full.rounds, full.until_accuracy, full.until_epsilon) == (9, 0.5, 2.0)


def test_a_limit_is_part_of_the_configuration_and_its_absence_is_none(matrix: Path) -> None:
    (full,) = cells(matrix, "full")
    free = full.model_copy(update={"until_accuracy": None, "until_epsilon": None})
    assert free.id != full.id
    assert "until" not in free.canonical()


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('scale = "full"', 'scale = "ful"', "train[1].scale: unknown scale 'ful'; did you mean 'full'?"),
        ("until_accuracy = 0.5", "until_accuracy = 1.5", "train[1].until_accuracy: out of range, got 1.5"),
        ("until_epsilon = 2", 'until_epsilon = "2"', "train[1].until_epsilon: expected a number"),
        ('scales = ["small", "full"]', 'scales = "small"', "scales: expected a list, got 'small'"),
    ],
)
def test_faults_of_scales_and_limits_are_one_line(matrix: Path, tmp_path: Path, old: str, new: str, fault: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(MATRIX.replace(old, new))
    with pytest.raises(MatrixError) as told:
        read(path, scale="full" if "until" in old else None)
    assert fault in str(told.value)


def test_an_unknown_scale_names_those_there_are(matrix: Path, tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="--scale: unknown scale 'ful'; did you mean 'full'"):
        read(matrix, scale="ful")
    plain = tmp_path / "plain.toml"
    plain.write_text("\n".join(line for line in MATRIX.splitlines() if not line.startswith("scale")))
    with pytest.raises(MatrixError, match="this matrix comes in one"):
        read(plain, scale="full")


def test_the_table_has_the_paper_beside_and_says_what_was_not_run(ran: tuple[Path, str]) -> None:
    run, output = ran
    assert "two sizes (small scale)" in output
    assert "paper 98.0 %" in output
    assert "not run at this scale: dataset digits, defense fed-sdp" in " ".join(output.split())
    found = {row.defense.partition("(")[0]: row for row in trainings(records(run), [PAPER])}
    none, noised = found["none"], found["fed-cdp"]
    assert none.published is PAPER and none.rounds == noised.rounds == 4
    assert none.epsilon is None and none.epsilon_absent is not None
    assert None not in (noised.epsilon, noised.epsilon_paper, noised.overhead, noised.milliseconds)
    assert any("√" in text for text in noised.caveats)
    assert missing(list(found.values()), [PAPER]) == []
    shown = CliRunner().invoke(cli, ["show", str(run), "--trainings", "--json"])
    assert {row["defense"] for row in json.loads(shown.output)["trainings"]} == {row.defense for row in found.values()}


def test_the_table_fits_80_columns(ran: tuple[Path, str]) -> None:
    text = printed(terminal.trainings(trainings(records(ran[0]), [PAPER]), [PAPER]), width=80)
    assert max(map(len, text.splitlines())) <= 80 and "…" not in text
    assert all(name in text for name in ("accuracy", "rounds", "ε paper", "ε valid", "ms/step", "× none"))


def test_several_seeds_are_one_row_with_their_span(ran: tuple[Path, str]) -> None:
    (first, *_) = [record for record in records(ran[0]) if record.cell.defense.name == "none"]
    assert first.training is not None
    other = replace(
        first,
        cell=first.cell.model_copy(update={"seed": 1}),
        result=replace(first.training, accuracy=0.5, diverged=True),
    )
    (row,) = trainings([first, other])
    assert row.seeds == 2
    assert (row.least, row.most) == tuple(sorted((0.5, first.training.accuracy)))
    assert row.diverged == 1


@pytest.mark.slow
def test_a_training_tells_every_round_and_takes_the_cores_that_are_left(matrix: Path, tmp_path: Path) -> None:
    planned = expand(read(matrix), Resolver(None).data)[1:]
    todo = schedule(planned, tmp_path, Resolver(None))
    steps: list[tuple[str, TrainingProgress]] = []
    finished: list[Record] = []

    class Listener(Observer):
        def on_progress(self, cell: AnyCell, progress: TrainingProgress) -> None:
            steps.append((cell.id, progress))

        def on_record(self, record: Record) -> None:
            finished.append(record)

    context = RunContext(run=tmp_path)
    run_schedule(todo, context, partial(ProcessPool, context, jobs=2), Listener())
    (record,) = finished
    assert record.environment is not None and record.environment.threads == 2
    assert [step.round for _, step in steps] == [1, 2, 3, 4]
    assert {name for name, _ in steps} == {record.id}
    spent = [step.epsilon for _, step in steps]
    assert None not in spent
    assert spent == sorted(spent)  # type: ignore[type-var]
    assert not list((tmp_path / "weights").rglob("going-on*"))


def test_bench_privacy_answers_with_every_convention() -> None:
    arguments = ["privacy", "--sigma", "6", "--delta", "1e-5", "--q", ".01", "--steps", "10000"]
    found = json.loads(CliRunner().invoke(cli, [*arguments, "--json"]).output)["figures"]
    by_name = {one["accountant"].split(" ")[0]: one["epsilon"] for one in found}
    known = {"moments": 0.8227, "base": 123.353, "advanced": 7.450, "zCDP": 1.159, "privacy": 0.601, "Gaussian": 1.271}
    for name, epsilon in known.items():
        assert by_name[name] == pytest.approx(epsilon, abs={"moments": 1e-4, "base": 1e-2}.get(name, 1e-3))
    assert {one["convention"] for one in found} == {"idealised", "paper", "tap"}
    assert all(one["adversary"] and one["adjacency"] and one["sampling"] for one in found)
    text = CliRunner().invoke(cli, arguments).output
    words = ("0.8227", "0.601", "of an attacker who", "sees the released models", "at the tap")
    assert all(each in text for each in words)
    wrong = CliRunner().invoke(cli, ["privacy", "--sigma", "0", "--q", ".1", "--steps", "1"])
    assert wrong.exit_code == 2 and "--sigma" in wrong.output
