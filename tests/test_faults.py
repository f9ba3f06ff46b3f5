"""Faults that BENCHMARKS.md lists: each test makes a fault and looks at the result."""

import io
import json
import os
import re
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from rich.console import Console
from tests import runs
from tests.cells import MEMORY, RESOLVER, alter, attack, entry, training
from tests.cells import answer as answer_to
from tests.workers import ScriptedPool

from bench.answer.context import Memory, RunContext, TrainingProgress
from bench.answer.run import run as run_cell
from bench.attacks.labels_only import LabelsOnly
from bench.cell import AnyCell, DataRef, Entry
from bench.cli.main import cli
from bench.cli.watching import say
from bench.errors import BenchError, DataError, StorageError
from bench.isolation.process import trace_path
from bench.matrix.expand import PlannedCell
from bench.record import request
from bench.record import store as records
from bench.record.folder import is_locked, locked
from bench.record.schema import Record
from bench.registry import entries as registry
from bench.sweep import progress
from bench.sweep.observer import Observer
from bench.sweep.plan import schedule
from bench.sweep.pool import CellReturned, WorkerGone, WorkerLost, run_within_limits
from bench.sweep.processes import ProcessPool, _send, device_of
from bench.sweep.session import run_schedule

pytestmark = pytest.mark.long

ROOT = Path(__file__).parent.parent


# Kills


def killing(folder: Path, *arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-P", str(ROOT / "tests" / "killing.py"), str(folder), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("kills", "seed"), [(6, 1), *(pytest.param(100, seed, marks=pytest.mark.slow) for seed in range(2, 8))]
)
def test_no_kill_at_any_point_tears_or_loses_a_record(tmp_path: Path, kills: int, seed: int) -> None:
    done = killing(tmp_path, kills, seed)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["killed"] == kills
    # so often a run that was killed on its way ended as an undisturbed one
    assert counts["equal"] >= kills // 5


@pytest.mark.slow  # a check of the check
def test_the_kills_would_find_files_that_are_written_in_place(tmp_path: Path) -> None:
    done = killing(tmp_path, 60, 1, "careless")
    assert done.returncode == 1
    assert "RecordError" in done.stderr or "AssertionError" in done.stderr


@pytest.mark.slow
def test_real_runs_killed_with_all_their_processes(
    gate: runs.Gate, gated: list[object], gated_alone: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    for at in (1, 2, 3, 3, 3):
        gate.close(at)
        with runs.bench(*gated, "--out", run) as bench:
            bench.until(gate.waiting)
            bench.kill()
        runs.whole(run)
        assert not is_locked(run)
    gate.open()
    runs.ran(*gated, "--out", run)
    runs.assert_equal(run, gated_alone)


# Plug-ins

HARM = {
    "Hangs": "import re; over(); re.match('(a+)+$', 'a' * 60 + 'b')",  # for ever, and holding the interpreter
    "Dies": "import os; os.kill(os.getpid(), 9)",
    "Writes": "next(iter(reading.values.values())).zero_(); reading.public_inputs.fill_(7.0)",
    "Breaks": "raise ValueError('no such picture [/data/x] \\x1b[2J\\nand more')",
    "Mumbles": (
        "import dataclasses; claim = LabelsOnly.reconstruct(self, reading, budget, key); "
        "return dataclasses.replace(claim, notes=({1, 2},))"
    ),
}


# The time of the cell that hangs is over as soon as it hangs: the limit itself is far above the others' time.
HASTE = """
import faulthandler
_later, _timer = faulthandler.dump_traceback_later, {}

def keep_timer(seconds, **options):
    assert 500 < seconds <= 600
    _timer.update(options)
    _later(seconds, **options)

def over():
    _later(0.2, **_timer)

faulthandler.dump_traceback_later = keep_timer
"""


@pytest.fixture(scope="module")
def harmed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A run with attacks that hang, die, write and break; one without them; and the output of the first."""
    folder = tmp_path_factory.mktemp("harmed")
    calm, harmful = ("labels-only", "cpl"), ("hangs", "dies", "writes", "breaks", "mumbles")
    plugins = [runs.plugin(folder, name, body) for name, body in HARM.items()]
    plugins[0].write_text(HASTE + plugins[0].read_text())
    # one cell of each attack: a worker that is lost costs the seconds of another's start
    harm = runs.matrix(folder, *calm, *harmful, text=runs.ONE_EACH, name="harm")
    alone = runs.matrix(folder, *calm, text=runs.ONE_EACH, name="calm")
    output = runs.ran(*runs.arguments(harm, *plugins), "--out", folder / "run", "--time-limit", "10m", code=1)
    runs.ran(*runs.arguments(alone), "--out", folder / "calm")
    return folder / "run", folder / "calm", output


def reason(run: Path, name: str) -> str:
    (record,) = (r for r in runs.whole(run).values() if r.cell.kind == "attack" and r.cell.attack.name == name)
    assert record.status == "crashed"
    return str(record.reason)


def answered_here(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Record:
    """The cell of such an attack, answered in this process."""
    monkeypatch.setattr(registry, "_added", {})
    registry.add_plugin(str(runs.plugin(folder, name, HARM[name])))
    cell, context = attack(attack=Entry(name=name.lower())), RunContext(run=folder)
    record = run_within_limits(cell, context, Memory(), lambda progress: None)
    assert record.status == "crashed"
    return record


@pytest.mark.slow
def test_a_cell_that_hangs_is_ended_and_says_where_it_was(harmed: tuple[Path, Path, str]) -> None:
    hung = reason(harmed[0], "hangs")
    assert hung.startswith("took longer than the time limit of 600 s; give --time-limit more")
    assert "hangs_attack.py" in Path(hung.partition("where it was: ")[2].rstrip(")")).read_text()


@pytest.mark.slow
def test_a_worker_that_dies_twice_of_one_cell_is_not_given_it_again(harmed: tuple[Path, Path, str]) -> None:
    assert reason(harmed[0], "dies") == "the attacker's process died (exit code -9)"


WRITES = "attack writes wrote to the reading that it was given; let it work on copies: tensor.clone()"
BREAKS = "ValueError: no such picture [/data/x] \x1b[2J (breaks_attack.py:11)"


def test_an_attack_that_writes_to_its_reading_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert answered_here(tmp_path, "Writes", monkeypatch).reason == WRITES


def test_an_attack_that_raises_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert answered_here(tmp_path, "Breaks", monkeypatch).reason == BREAKS


def test_an_answer_that_cannot_be_written_is_the_attack_s_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_mumbled(str(answered_here(tmp_path, "Mumbles", monkeypatch).reason))


def assert_mumbled(reason: str) -> None:
    assert reason.startswith("what is to be recorded is no JSON: ")
    assert "field_name='notes', input_value={1, 2}" in reason


@pytest.mark.slow
def test_faults_in_processes_of_plug_ins_have_the_same_reasons(harmed: tuple[Path, Path, str]) -> None:
    assert reason(harmed[0], "writes") == WRITES
    assert reason(harmed[0], "breaks") == BREAKS
    assert_mumbled(reason(harmed[0], "mumbles"))
    assert "Traceback" not in harmed[2]
    assert "\x1b[2J" not in harmed[2]


def test_reasons_are_shown_as_they_are_but_drive_no_terminal() -> None:
    shown = io.StringIO()
    say(Console(file=shown, force_terminal=True, width=200), "[/data/x] [red]no\x1b[2J room", "red")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown.getvalue())
    assert plain == "[/data/x] [red]no\ufffd[2J room\n"


@pytest.mark.slow
def test_workers_that_die_idle_or_with_a_cell(tmp_path: Path) -> None:
    """An idle worker is replaced; the cell of a busy worker is lost, and a trace of an earlier run says nothing."""
    trace_path(tmp_path, attack(seed=1).id).parent.mkdir()
    trace_path(tmp_path, attack(seed=1).id).write_text("it hung, last week")
    with closing(ProcessPool(RunContext(run=tmp_path), jobs=1)) as pool:
        pool.submit("1", attack(), demand=1)
        ((_, event),) = pool.events()
        assert isinstance(event, Record) and event.status == "done"
        idle = pool._workers["1"].process
        idle.kill()
        idle.join()
        pool.submit("1", attack(seed=1), demand=1)
        assert pool._workers["1"].process is not idle
        pool._workers["1"].process.kill()  # before its imports are over
        ((_, event),) = pool.events()
        assert event == WorkerLost(reason="its worker process died (exit code -9)")


@pytest.mark.slow
def test_workers_that_die_idle_or_in_an_attack(gate: runs.Gate, tmp_path: Path) -> None:
    cell = attack(attack=Entry(name=gate.attacks[0]))
    gate.close(at=1)
    trace_path(tmp_path, cell.id).parent.mkdir()
    trace_path(tmp_path, cell.id).write_text("it hung, last week")
    with closing(ProcessPool(RunContext(run=tmp_path), jobs=1, plugins=[str(gate.plugin)])) as pool:
        pool.submit("1", attack(), demand=1)
        ((_, event),) = pool.events()
        assert isinstance(event, Record) and event.status == "done"
        pool._workers["1"].process.kill()
        pool._workers["1"].process.join()
        pool.submit("1", cell, demand=1)
        runs.until(gate.waiting)
        pool._workers["1"].process.kill()
        ((_, event),) = pool.events()
        assert event == WorkerLost(reason="its worker process died (exit code -9)")


def test_a_worker_without_a_parent_ends_and_blames_no_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = Pipe()
    ours.close()
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit) as ended:
        _send(theirs, TrainingProgress(round=1, rounds=2, accuracy=0.5, epsilon=None, seconds_left=1.0))
    assert ended.value.code == 1


@pytest.mark.slow
def test_their_neighbours_are_as_if_they_had_not_been_there(harmed: tuple[Path, Path, str]) -> None:
    run, calm, _ = harmed
    here, there = runs.whole(run), runs.whole(calm)
    assert there.keys() <= here.keys()
    for id_, record in there.items():
        assert here[id_].result == record.result


@pytest.mark.slow
def test_a_worker_that_dies_once_costs_its_cell_nothing(tmp_path: Path) -> None:
    once = tmp_path / "once"
    body = f"import os, pathlib; p = pathlib.Path({str(once)!r}); p.exists() or (p.touch(), os.kill(os.getpid(), 9))"
    plugin = runs.plugin(tmp_path, "Once", body)
    arguments = runs.arguments(runs.matrix(tmp_path, "once"), plugin)
    runs.ran(*arguments, "--out", tmp_path / "run")
    assert once.exists()
    assert {record.status for record in runs.whole(tmp_path / "run").values()} == {"done"}


class Nothing(LabelsOnly):
    """An attack that finds no number."""

    def reconstruct(self, reading: Any, budget: Any, key: Any) -> Any:
        claim = super().reconstruct(reading, budget, key)
        return replace(claim, inputs=torch.full_like(claim.inputs, float("nan")))


class Greedy(LabelsOnly):
    """An attack whose memory grows with the chunk."""

    def reconstruct(self, reading: Any, budget: Any, key: Any) -> Any:
        if budget.chunk > 4:
            self._take()
        return super().reconstruct(reading, budget, key)

    def _take(self) -> None:
        torch.empty(2**50)


class GreedyOnGpu(Greedy):
    def _take(self) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")


class GreedyInNumpy(Greedy):
    def _take(self) -> None:
        np.empty(2**50)


def answered(kind: type, run: Path, monkeypatch: pytest.MonkeyPatch, **changed: Any) -> Record:
    instance = registry.instance
    monkeypatch.setattr(
        registry, "instance", lambda sort, name, params: kind() if sort == "attacks" else instance(sort, name, params)
    )
    return run_cell(attack(**changed), RunContext(run=run), Memory())


def test_examples_that_are_no_numbers_are_no_protection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = answered(Nothing, tmp_path, monkeypatch)
    records.write(tmp_path, record)  # and it is JSON, which has no NaN
    assert record.attack is not None
    assert record.attack.figures().asr.value == 0
    assert record.attack.figures().lower_bound is True


@pytest.mark.parametrize("kind", [Greedy, GreedyOnGpu, GreedyInNumpy])
def test_out_of_memory_halves_the_chunk_and_says_so(
    kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = answered(kind, tmp_path, monkeypatch, chunk=16)
    assert record.attack is not None, record.reason
    assert record.attack.notes[-2:] == (
        "out of memory: went on with 8 readings at once",
        "out of memory: went on with 4 readings at once",
    )


def test_other_errors_are_not_taken_for_a_lack_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(LabelsOnly):
        def reconstruct(self, reading: Any, budget: Any, key: Any) -> Any:
            raise RuntimeError("shapes do not fit")

    record = answered(Wrong, tmp_path, monkeypatch, chunk=16)
    assert (record.status, "shapes do not fit" in str(record.reason)) == ("crashed", True)


# Disks and folders


def test_arrays_that_are_damaged_are_written_again(tmp_path: Path) -> None:
    arrays = {"truth": np.arange(6, dtype=np.float32)}
    path = tmp_path / "arrays" / f"{records.write_arrays(tmp_path, arrays)}.npz"
    whole = path.read_bytes()
    for damaged in (b"", whole[:-9], whole.replace(b"truth", b"trust")):
        path.write_bytes(damaged)
        records.write_arrays(tmp_path, arrays)
        assert records.read_arrays(tmp_path, path.stem)["truth"].tolist() == list(range(6))


def test_what_was_set_aside_is_never_written_over(tmp_path: Path) -> None:
    record = answer_to(attack(), tmp_path)
    for number in range(3):
        bench = replace(record.provenance.bench, version=str(number))
        records.write(tmp_path, replace(record, provenance=replace(record.provenance, bench=bench)))
    kept = tmp_path / "kept"
    assert len(list(kept.iterdir())) == 3
    (kept / f"{record.id}.0.json").unlink()
    last = (kept / f"{record.id}.2.json").read_bytes()
    records.write(tmp_path, record)
    assert len(list(kept.iterdir())) == 3
    assert (kept / f"{record.id}.2.json").read_bytes() == last


@pytest.mark.parametrize("name", [".lock", "records", "arrays", "weights", "hung", "kept", "weights/theirs"])
def test_a_stranger_s_run_folder_does_not_lead_elsewhere(tmp_path: Path, name: str) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    (run / "weights").mkdir(parents=True)
    if name == ".lock":
        elsewhere.write_text("mine")
    else:
        elsewhere.mkdir()
        (elsewhere / ".mine.part").write_text("mine")
    if name == "weights":
        (run / "weights").rmdir()
    (run / name).symlink_to(elsewhere)
    with pytest.raises(BenchError, match=re.escape(str(run))), locked(run):
        pass
    kept = elsewhere if name == ".lock" else elsewhere / ".mine.part"
    assert kept.read_text() == "mine"


def test_a_trace_is_not_written_through_a_link(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine")
    path = trace_path(tmp_path / "run", attack().id)
    path.parent.mkdir(parents=True)
    path.symlink_to(mine)
    context = RunContext(run=tmp_path / "run", time_limit=600.0)
    assert run_within_limits(attack(), context, MEMORY, lambda progress: None).status == "done"
    assert mine.read_text() == "mine"


@pytest.fixture
def quick(tmp_path: Path) -> list[object]:
    return [*runs.arguments(runs.matrix(tmp_path, "labels-only")), "--jobs", "2", "--out"]


@pytest.mark.slow
def test_a_full_disk_stops_the_run_with_a_line_and_loses_nothing(tmp_path: Path, quick: list[object]) -> None:
    with runs.tiny_disk(tmp_path / "tiny", "2m") as tiny:
        (tiny / "ballast").write_bytes(b"x" * (1790 << 10))
        output = runs.ran(*quick, tiny / "run", code=2)
        assert "No space left on device" in output.splitlines()[-1]
        assert "Traceback" not in output
        before = {id_: record.cost for id_, record in runs.whole(tiny / "run").items()}
        assert "the same command goes on" in status(tiny / "run")  # it says why, if there was room for that
        (tiny / "ballast").unlink()
        runs.ran(*quick, tiny / "run")
        runs.ran(*quick, tmp_path / "calm")
        runs.assert_equal(tiny / "run", tmp_path / "calm")
        after = runs.whole(tiny / "run")
        assert {id_: after[id_].cost for id_ in before} == before


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, quick: list[object]) -> None:
    with runs.tiny_disk(tmp_path / "tiny") as tiny:
        subprocess.run(["mount", "-o", "remount,ro", str(tiny)], check=True)
        output = runs.ran(*quick, tiny / "run", code=2)
    assert output.splitlines()[-1].endswith("cannot be written (Read-only file system); choose another --out")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="Not a directory"), locked(tmp_path / "file" / "run"):
        pass


def status(run: Path, *options: str) -> str:
    return CliRunner().invoke(cli, ["status", *options, str(run)]).output


def test_a_second_run_on_a_folder_waits_for_nobody_and_changes_nothing(tmp_path: Path, quick: list[object]) -> None:
    """The first run is this process, which holds the folder."""
    run = tmp_path / "run"
    with locked(run), reporter(run):
        kept = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
        second = CliRunner().invoke(cli, [*map(str, quick), str(run)])
        assert f"a run is under way there (process {os.getpid()}" in str(second.exception)
        assert isinstance(second.exception, BenchError)
        assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == kept
        assert "under way on " in status(run)
    assert CliRunner().invoke(cli, ["status", str(run)]).exit_code == 0
    assert "finished" in status(run)


@pytest.mark.slow
def test_a_second_process_on_a_folder_waits_for_nobody_and_changes_nothing(
    gate: runs.Gate, tmp_path: Path, quick: list[object]
) -> None:
    run = tmp_path / "run"
    matrix = runs.matrix(tmp_path, *gate.attacks, text=runs.ONE_EACH, name="first")
    gate.close(at=2)
    with runs.bench(*runs.arguments(matrix, gate.plugin), "--jobs", "1", "--out", run) as first:
        first.until(gate.waiting)
        output = runs.ran(*quick, run, code=2)
        assert "a run is under way there (process" in output
        assert "under way on " in status(run)
        first.until(lambda: "worker " in status(run))  # the file is written every two seconds
        kept = request.read(run)
        assert kept is not None
        assert kept.plugins == (str(gate.plugin),)
        gate.open()
        first.ended()
    assert "finished" in status(run)


def test_what_a_killed_run_was_writing_is_cleared_away(tmp_path: Path) -> None:
    left = [tmp_path / "records" / ".0f.part", tmp_path / "weights" / "a" / ".1f.part", tmp_path / "hung" / "b.txt"]
    kept = [tmp_path / "records" / "notes.part", tmp_path / "hung" / "c.txt"]
    for path in (*left, *kept):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("where it was" if path in kept else "")
    with locked(tmp_path):
        assert not any(path.exists() for path in left)
    assert all(path.exists() for path in kept)


def test_data_altered_between_two_cells_are_not_attacked_for_the_planned_ones(tmp_path: Path) -> None:
    pack = tmp_path / "mine.npz"
    draw = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "x_train": draw.integers(0, 256, (40, 1, 8, 8), dtype=np.uint8),
        "y_train": np.arange(40) % 4,
        "x_test": draw.integers(0, 256, (20, 1, 8, 8), dtype=np.uint8),
        "y_test": np.arange(20) % 4,
    }
    np.savez(pack, **arrays)
    params = entry("datasets", "npz", path=str(pack), layout="CHW").params
    data = DataRef(name="npz", params=params, sha256=RESOLVER.data("npz", params).sha256)
    memory, context = Memory(), RunContext(run=tmp_path / "run")
    first = attack(dataset=data)
    assert run_cell(first, context, memory).status == "done"
    np.savez(pack, **arrays | {"x_train": 255 - arrays["x_train"]})
    kept = run_cell(attack(dataset=data, seed=1), context, memory)
    assert kept.status == "done"  # what was read once is what was planned
    fresh = run_cell(attack(dataset=data, seed=2), context, Memory())
    assert (fresh.status, "its content changed since the matrix was planned" in str(fresh.reason)) == ("crashed", True)
    with pytest.raises(DataError, match="its content changed"):
        run_cell(attack(dataset=data, seed=2), replace(context, data_errors_fail_cell=False), Memory())


# Clocks

BACKWARDS = """
import time
real, calls = time.time, iter(range(10**9))
time.time = lambda: real() - 3600 * next(calls)
from bench.cli.main import main
main()
"""


@pytest.mark.slow
def test_a_clock_that_goes_backwards_changes_no_answer(tmp_path: Path, quick: list[object]) -> None:
    arguments = [str(part) for part in quick]
    done = subprocess.run(
        [sys.executable, "-P", "-c", BACKWARDS, *arguments, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    runs.ran(*quick, tmp_path / "calm")
    runs.assert_equal(tmp_path / "run", tmp_path / "calm")


def reporter(run: Path, title: str = "a run") -> progress.Reporter:
    (run / "records").mkdir(parents=True, exist_ok=True)
    return progress.Reporter(run, title, cells=2, settled=1, left=lambda: 5.0)


def test_a_run_seen_in_the_future_is_seen_now(tmp_path: Path) -> None:
    with reporter(tmp_path):
        pass
    alter(tmp_path / "progress.json", seen=time.time() + 1e6, began=time.time() + 2e6)
    assert "finished 0 s ago" in status(tmp_path)


# What a run says of itself


def test_a_killed_run_is_said_to_be_killed(tmp_path: Path) -> None:
    with reporter(tmp_path):
        assert "killed, last seen" in status(tmp_path)  # nothing holds it
    with pytest.raises(StorageError), reporter(tmp_path):
        raise StorageError("no room")
    assert "stopped: no room, " in status(tmp_path)
    assert "the same command goes on" in status(tmp_path)
    assert json.loads(status(tmp_path, "--json"))["under_way"] is False


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", "null", '{"title": 1}', "[" * 10**5, '{"busy": {"a": 1}}', "\xff", "1e999"]
)
def test_a_damaged_progress_is_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "records").mkdir()
    (tmp_path / "progress.json").write_text(content, "latin-1")
    with pytest.raises(BenchError, match="not a run's progress"):
        progress.read(tmp_path)


def test_a_number_that_is_none_is_a_damaged_progress(tmp_path: Path) -> None:
    with reporter(tmp_path):
        pass
    for field in ("seen", "settled"):
        for wrong in (10**400, float("inf"), "now", None):
            alter(tmp_path / "progress.json", **{field: wrong})
            with pytest.raises(BenchError, match="not a run's progress"):
                progress.read(tmp_path)
        alter(tmp_path / "progress.json", **{field: 1})


def test_a_cell_is_at_one_worker(tmp_path: Path) -> None:
    with reporter(tmp_path) as file:
        for worker in ("that was lost", "another"):
            file.on_start(attack(), worker)
        file.write("running")
        content = progress.read(tmp_path)
    assert content is not None
    assert list(content.busy) == ["another"]


def test_a_strangers_progress_is_sanitized(tmp_path: Path) -> None:
    title = "\x1b[2J\u202eevil" + "x" * 10**5
    with pytest.raises(BenchError), reporter(tmp_path, title):
        raise BenchError("\x1b]0;title\x07")
    assert all(line.isprintable() for line in status(tmp_path).splitlines())
    assert len(status(tmp_path)) < 2000


# The worker pool


def scripted(run: Path, script: list[Any], *cells: AnyCell) -> list[Record]:
    """The records that observers hear of in a run whose workers follow this script."""
    found: list[Record] = []

    class Collector(Observer):
        def on_record(self, record: Record) -> None:
            found.append(record)

    context = RunContext(run=run)
    with locked(run):
        todo = schedule([PlannedCell(cell, None) for cell in cells], run, RESOLVER)
        run_schedule(todo, context, lambda: ScriptedPool(context, script), Collector())
    return found


def test_a_cell_is_given_back_lost_and_lost_again(tmp_path: Path) -> None:
    lost = WorkerLost(reason="it died")
    script = [("a", CellReturned()), ("b", lost), ("a", CellReturned()), ("b", WorkerGone())]
    settled = scripted(tmp_path / "one", script, training(), attack())
    assert [record.status for record in settled] == ["done", "done"]
    (record,) = scripted(tmp_path / "other", [("a", lost), ("b", lost)] * 2, attack())
    assert (record.status, record.reason) == ("crashed", "it died")


def test_gpus_go_round_among_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [device_of("cuda", number) for number in range(4)] == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]
    assert device_of("cpu", 1) == "cpu"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert device_of("cuda", 3) == "cuda"
