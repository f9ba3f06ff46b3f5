"""What RELIABILITY.md says of faults: each is made here, and what came of it is looked at."""

import io
import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from rich.console import Console
from tests import runs
from tests.test_plan import MEMORY, RESOLVER, attack, entry, training
from tests.test_plan import answer as answer_to

from bench.answer.run import Memory, Place, run_cell
from bench.attacks.labels_only import LabelsOnly
from bench.cell import AnyCell, DataRef
from bench.cli.main import cli
from bench.cli.watching import _say
from bench.errors import BenchError, DataError, StorageError
from bench.matrix.expand import Planned
from bench.record import store as records
from bench.record.folder import is_held, opened
from bench.registry import entries as registry
from bench.sweep import progress
from bench.sweep.dispatch import Watch
from bench.sweep.plan import schedule
from bench.sweep.pool import Lost, answer, hung
from bench.sweep.processes import Processes, device_of
from bench.sweep.session import carry_out

ROOT = Path(__file__).parent.parent


# Kills


def killing(folder: Path, *arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-P", str(ROOT / "tests" / "killing.py"), str(folder), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 7))])
def test_no_kill_at_any_point_tears_or_loses_a_record(tmp_path: Path, seed: int) -> None:
    done = killing(tmp_path, 100, seed)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["killed"] == 100
    assert told["equal"] >= 20  # so often a run that was killed on its way ended as an undisturbed one


def test_the_kills_would_find_files_that_are_written_in_place(tmp_path: Path) -> None:
    done = killing(tmp_path, 60, 1, "careless")
    assert done.returncode == 1
    assert "RecordError" in done.stderr or "AssertionError" in done.stderr


@pytest.mark.slow
def test_real_runs_killed_with_all_their_processes(tmp_path: Path) -> None:
    slow = runs.plugin(tmp_path, "Slow", "time.sleep(0.1)")
    asked = [*runs.asked(runs.matrix(tmp_path, "slow", "cpl"), slow), "--out"]
    assert runs.ran(*asked, tmp_path / "calm")[0] == 0
    run = tmp_path / "run"
    for wanted in (0, 1, 3, 6, 10, 14):
        with runs.bench(*asked, run) as process:
            runs.until(lambda wanted=wanted: runs.settled(run) >= wanted and (run / "progress.json").exists())
            runs.kill(process)
        runs.whole(run)
        assert not is_held(run)
    code, told = runs.ran(*asked, run)
    assert code == 0, told
    runs.assert_equal(run, tmp_path / "calm")


# Plug-ins

HARM = {
    "Hangs": "import re; re.match('(a+)+$', 'a' * 60 + 'b')",  # for ever, and holding the interpreter
    "Dies": "import os; os.kill(os.getpid(), 9)",
    "Writes": "next(iter(reading.values.values())).zero_(); reading.public_inputs.fill_(7.0)",
    "Breaks": "raise ValueError('no such picture [/data/x] \\x1b[2J\\nand more')",
    "Mumbles": (
        "import dataclasses; found = LabelsOnly.reconstruct(self, reading, budget, key); "
        "return dataclasses.replace(found, notes=({1, 2},))"
    ),
}


@pytest.fixture(scope="module")
def harmed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A run beside attacks that hang, die, write and break; one without them; and what the first said."""
    folder = tmp_path_factory.mktemp("harmed")
    text = runs.MATRIX.format(attacks='"labels-only", "cpl", "hangs", "dies", "writes", "breaks", "mumbles"')
    text = text.replace('point = ["type-2", "type-1"]', 'point = ["type-2"]').replace(', "prune"', "")
    (folder / "harm.toml").write_text(text)
    (folder / "calm.toml").write_text(text.replace(', "hangs", "dies", "writes", "breaks", "mumbles"', ""))
    plugins = [runs.plugin(folder, name, body) for name, body in HARM.items()]
    harm = runs.asked(folder / "harm.toml", *plugins)
    code, told = runs.ran(*harm, "--out", folder / "run", "--time-limit", "5s")
    assert code == 1, told
    assert runs.ran(*runs.asked(folder / "calm.toml"), "--out", folder / "calm")[0] == 0
    return folder / "run", folder / "calm", told


def reasons(run: Path, name: str) -> set[str]:
    found = [one for one in runs.whole(run).values() if one.cell.get("attack", {}).get("name") == name]
    assert len(found) == 2
    assert {one.status for one in found} == {"crashed"}
    return {str(one.reason) for one in found}


def test_a_cell_that_hangs_is_ended_and_says_where_it_was(harmed: tuple[Path, Path, str]) -> None:
    for reason in reasons(harmed[0], "hangs"):
        assert reason.startswith("took longer than the time limit of 5 s; give --time-limit more")
        trace = Path(reason.partition("where it was: ")[2].rstrip(")"))
        assert "hangs_attack.py" in trace.read_text()


def test_a_worker_that_dies_twice_of_one_cell_is_not_given_it_again(harmed: tuple[Path, Path, str]) -> None:
    assert reasons(harmed[0], "dies") == {"its worker process died (exit code -9)"}


def test_an_attack_that_writes_to_its_reading_is_found_out(harmed: tuple[Path, Path, str]) -> None:
    assert reasons(harmed[0], "writes") == {
        "attack writes wrote to the reading that it was given; let it work on copies: tensor.clone()"
    }


def test_an_attack_that_raises_is_one_line(harmed: tuple[Path, Path, str]) -> None:
    (reason,) = reasons(harmed[0], "breaks")
    assert reason == "ValueError: no such picture [/data/x] \x1b[2J (breaks_attack.py:11)"
    assert "Traceback" not in harmed[2]
    assert "\x1b[2J" not in harmed[2]


def test_reasons_are_shown_as_they_are_but_drive_no_terminal() -> None:
    shown = io.StringIO()
    _say(Console(file=shown, force_terminal=True, width=200), "[/data/x] [red]no\x1b[2J room", "red")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown.getvalue())
    assert plain == "[/data/x] [red]no\ufffd[2J room\n"


def test_an_answer_that_cannot_be_written_is_the_attack_s_fault(harmed: tuple[Path, Path, str]) -> None:
    assert reasons(harmed[0], "mumbles") == {
        "what is to be recorded is no JSON: Object of type set is not JSON serializable"
    }


def test_a_trace_of_an_earlier_run_says_nothing_of_this_one(tmp_path: Path) -> None:
    cell = attack()
    crew = Processes(Place(run=tmp_path), jobs=1)
    hung(tmp_path, cell).parent.mkdir()
    hung(tmp_path, cell).write_text("it hung, last week")
    try:
        crew.give("1", cell, demand=1)
        crew._workers["1"].process.kill()
        ((_, found),) = crew.news()
        assert found == Lost(reason="its worker process died (exit code -9)")
    finally:
        crew.close()


def test_a_worker_that_dies_while_it_has_nothing_to_do_is_replaced(tmp_path: Path) -> None:
    crew = Processes(Place(run=tmp_path), jobs=1)
    try:
        for number in range(2):
            crew.give("1", attack(readings=1 + number), demand=1)
            ((_, found),) = crew.news()
            assert isinstance(found, records.Record), found
            assert found.status == "done"
            crew._workers["1"].process.kill()
            crew._workers["1"].process.join()
    finally:
        crew.close()


def test_a_worker_without_a_parent_ends_and_blames_no_cell() -> None:
    orphan = """
from multiprocessing import Pipe
from bench.answer.run import Step
from bench.sweep.processes import _tell
ours, theirs = Pipe()
ours.close()
_tell(theirs, Step(round=1, rounds=2, accuracy=0.5, epsilon=None, seconds_left=1.0))
print("went on")
"""
    done = subprocess.run([sys.executable, "-P", "-c", orphan], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")


def test_their_neighbours_are_as_if_they_had_not_been_there(harmed: tuple[Path, Path, str]) -> None:
    run, calm, _ = harmed
    here, there = runs.whole(run), runs.whole(calm)
    assert there.keys() <= here.keys()
    for id_, record in there.items():
        assert (here[id_].summary, here[id_].victims) == (record.summary, record.victims)


@pytest.mark.slow
def test_a_worker_that_dies_once_costs_its_cell_nothing(tmp_path: Path) -> None:
    once = tmp_path / "once"
    body = f"import os, pathlib; p = pathlib.Path({str(once)!r}); p.exists() or (p.touch(), os.kill(os.getpid(), 9))"
    plugin = runs.plugin(tmp_path, "Once", body)
    code, told = runs.ran(*runs.asked(runs.matrix(tmp_path, "once"), plugin), "--out", tmp_path / "run")
    assert code == 0, told
    assert once.exists()
    assert {record.status for record in runs.whole(tmp_path / "run").values()} == {"done"}


class Nothing(LabelsOnly):
    """An attack that finds no number."""

    def reconstruct(self, reading: Any, budget: Any, key: Any) -> Any:
        found = super().reconstruct(reading, budget, key)
        return replace(found, inputs=torch.full_like(found.inputs, float("nan")))


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


def answered(kind: type, run: Path, monkeypatch: pytest.MonkeyPatch, **changed: Any) -> records.Record:
    instance = registry.instance
    monkeypatch.setattr(
        registry,
        "instance",
        lambda sort, name, params: kind() if sort == "attacks" else instance(sort, name, params),
    )
    return run_cell(attack(**changed), Place(run=run), Memory())


def test_pictures_that_are_no_numbers_are_no_protection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = answered(Nothing, tmp_path, monkeypatch)
    records.write(tmp_path, record)  # and it is JSON, which has no NaN
    assert record.status == "done"
    assert record.summary["asr"] == 0
    assert record.summary["lower_bound"] is True


@pytest.mark.parametrize("kind", [Greedy, GreedyOnGpu, GreedyInNumpy])
def test_out_of_memory_halves_the_chunk_and_says_so(
    kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = answered(kind, tmp_path, monkeypatch, chunk=16)
    assert record.status == "done", record.reason
    assert record.summary["notes"][-2:] == [
        "out of memory: went on with 8 readings at once", "out of memory: went on with 4 readings at once"
    ]  # fmt: skip


def test_other_errors_are_not_taken_for_a_lack_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        records.write(tmp_path, replace(record, source={"bench": {"version": str(number)}}))
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
    with pytest.raises(BenchError, match=re.escape(str(run))), opened(run):
        pass
    kept = elsewhere if name == ".lock" else elsewhere / ".mine.part"
    assert kept.read_text() == "mine"


def test_a_trace_is_not_written_through_a_link(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine")
    path = hung(tmp_path / "run", attack())
    path.parent.mkdir(parents=True)
    path.symlink_to(mine)
    assert (
        answer(attack(), Place(run=tmp_path / "run", limit=60.0), MEMORY, lambda step: None).status == "done"
    )
    assert mine.read_text() == "mine"


@pytest.fixture
def quick(tmp_path: Path) -> list[object]:
    return [*runs.asked(runs.matrix(tmp_path, "labels-only")), "--jobs", "2", "--out"]


@pytest.mark.slow
def test_a_full_disk_stops_the_run_with_a_line_and_loses_nothing(tmp_path: Path, quick: list[object]) -> None:
    with runs.tiny_disk(tmp_path / "tiny", "2m") as tiny:
        (tiny / "ballast").write_bytes(b"x" * (1790 << 10))
        code, told = runs.ran(*quick, tiny / "run")
        assert code == 2, told
        assert "No space left on device" in told.splitlines()[-1]
        assert "Traceback" not in told
        before = {id_: record.cost for id_, record in runs.whole(tiny / "run").items()}
        assert "No space left" in CliRunner().invoke(cli, ["status", str(tiny / "run")]).output or not before
        (tiny / "ballast").unlink()
        code, told = runs.ran(*quick, tiny / "run")
        assert code == 0, told
        assert runs.ran(*quick, tmp_path / "calm")[0] == 0
        runs.assert_equal(tiny / "run", tmp_path / "calm")
        after = runs.whole(tiny / "run")
        assert {id_: after[id_].cost for id_ in before} == before


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, quick: list[object]) -> None:
    with runs.tiny_disk(tmp_path / "tiny") as tiny:
        subprocess.run(["mount", "-o", "remount,ro", str(tiny)], check=True)
        code, told = runs.ran(*quick, tiny / "run")
    assert code == 2
    assert told.splitlines()[-1].endswith("cannot be written (Read-only file system); choose another --out")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="Not a directory"), opened(tmp_path / "file" / "run"):
        pass


def test_a_second_run_on_a_folder_waits_for_nobody_and_changes_nothing(
    tmp_path: Path, quick: list[object]
) -> None:
    run = tmp_path / "run"
    slow = runs.plugin(tmp_path, "Slow", "time.sleep(4)")
    (tmp_path / "slow").mkdir()
    matrix = runs.matrix(tmp_path / "slow", "slow")
    with runs.bench(*runs.asked(matrix, slow), "--out", run) as first:
        runs.until(lambda: runs.settled(run) > 0)
        code, told = runs.ran(*quick, run)
        assert code == 2
        assert "a run is under way there (process" in told
        said = CliRunner().invoke(cli, ["status", str(run)]).output
        assert "under way on " in said
        assert "worker " in said
        assert "slow" in json.loads((run / "asked.json").read_text())["plugins"][0]
        assert runs.ended(first)[0] == 0
    assert "finished" in CliRunner().invoke(cli, ["status", str(run)]).output


def test_what_a_killed_run_was_writing_is_cleared_away(tmp_path: Path) -> None:
    left = [
        tmp_path / "records" / ".0f.part",
        tmp_path / "weights" / "a" / ".1f.part",
        tmp_path / "hung" / "b.txt",
    ]
    kept = [tmp_path / "records" / "notes.part", tmp_path / "hung" / "c.txt"]
    for path in (*left, *kept):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("where it was" if path in kept else "")
    with opened(tmp_path):
        assert not any(path.exists() for path in left)
    assert all(path.exists() for path in kept)


def test_data_altered_between_two_cells_are_not_attacked_for_the_planned_ones(tmp_path: Path) -> None:
    pack = tmp_path / "mine.npz"
    draw = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "x_train": draw.integers(0, 256, (40, 1, 8, 8), dtype=np.uint8), "y_train": np.arange(40) % 4,
        "x_test": draw.integers(0, 256, (20, 1, 8, 8), dtype=np.uint8), "y_test": np.arange(20) % 4,
    }  # fmt: skip
    np.savez(pack, **arrays)
    params = entry("datasets", "npz", path=str(pack), layout="CHW").params
    data = DataRef(name="npz", params=params, sha256=RESOLVER.data("npz", params).sha256)
    memory, place = Memory(), Place(run=tmp_path / "run")
    first = attack(dataset=data)
    assert run_cell(first, place, memory).status == "done"
    np.savez(pack, **arrays | {"x_train": 255 - arrays["x_train"]})
    kept = run_cell(attack(dataset=data, seed=1), place, memory)
    assert kept.status == "done"  # what was read once is what was planned
    fresh = run_cell(attack(dataset=data, seed=2), place, Memory())
    assert (fresh.status, "its content changed since the matrix was planned" in str(fresh.reason)) == (
        "crashed",
        True,
    )
    with pytest.raises(DataError, match="its content changed"):
        run_cell(attack(dataset=data, seed=2), replace(place, blames_data=False), Memory())


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
    asked = [str(part) for part in quick]
    done = subprocess.run(
        [sys.executable, "-P", "-c", BACKWARDS, *asked, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert runs.ran(*quick, tmp_path / "calm")[0] == 0
    runs.assert_equal(tmp_path / "run", tmp_path / "calm")


def test_a_run_seen_in_the_future_is_seen_now(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    reporter = progress.Reporter(tmp_path, title="a run", cells=2, settled=1, left=lambda: 5.0)
    reporter.close("finished")
    path = tmp_path / "progress.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"seen": time.time() + 1e6, "began": time.time() + 2e6})
    )
    assert "finished 0 s ago" in CliRunner().invoke(cli, ["status", str(tmp_path)]).output


# What a run says of itself


def test_a_killed_run_is_said_to_be_killed(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    reporter = progress.Reporter(tmp_path, title="a run", cells=2, settled=1, left=lambda: 5.0)
    assert (
        "killed, last seen" in CliRunner().invoke(cli, ["status", str(tmp_path)]).output
    )  # nothing holds it
    reporter.close("stopped: no room")
    said = CliRunner().invoke(cli, ["status", str(tmp_path)]).output
    assert "stopped: no room, " in said
    assert "the same command goes on" in said
    assert (
        json.loads(CliRunner().invoke(cli, ["status", "--json", str(tmp_path)]).output)["under_way"] is False
    )


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", "null", '{"title": 1}', "[" * 10**5, '{"busy": {"a": 1}}', "\xff", "1e999"]
)  # fmt: skip
def test_a_damaged_progress_is_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "records").mkdir()
    (tmp_path / "progress.json").write_text(content, "latin-1")
    with pytest.raises(BenchError, match="not a run's progress"):
        progress.read(tmp_path)


def test_a_time_that_is_none_is_a_damaged_progress(tmp_path: Path) -> None:
    progress.Reporter(tmp_path, title="a run", cells=2, settled=1, left=lambda: 5.0).close("finished")
    path = tmp_path / "progress.json"
    whole = json.loads(path.read_text())
    for wrong in (10**400, float("inf"), "now", None):
        path.write_text(json.dumps(whole | {"seen": wrong}))
        with pytest.raises(BenchError, match="not a run's progress"):
            progress.read(tmp_path)


def test_a_cell_is_at_one_worker(tmp_path: Path) -> None:
    reporter = progress.Reporter(tmp_path, title="a run", cells=2, settled=0, left=lambda: None)
    for worker in ("that was lost", "another"):
        reporter.started(attack(), worker)
    reporter._write("running")
    said = progress.read(tmp_path)
    reporter.close("finished")
    assert said is not None
    assert list(said.busy) == ["another"]


def test_a_strangers_progress_is_shown_sanitized(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    reporter = progress.Reporter(
        tmp_path, title="\x1b[2J\u202eevil" + "x" * 10**5, cells=2, settled=1, left=lambda: 5.0
    )
    reporter.close("stopped: \x1b]0;title\x07")
    said = CliRunner().invoke(cli, ["status", str(tmp_path)]).output
    assert all(line.isprintable() for line in said.splitlines())
    assert len(said) < 2000


# The crew


class Moody:
    """A crew whose workers come, go and lie, by a script of news (`bench.sweep.pool.Crew`)."""

    def __init__(self, place: Place, script: list[Any]) -> None:
        self._place, self._script, self._at = place, script, dict[str, AnyCell]()
        self.given: list[tuple[str, str]] = []

    def members(self) -> tuple[str, ...]:
        return ("a", "b")

    def give(self, worker: str, cell: AnyCell, *, demand: int) -> None:
        self._at[worker] = cell
        self.given.append((worker, cell.id))

    def news(self) -> list[tuple[str, Any]]:
        if self._script:
            worker, news = self._script.pop(0)
            self._at.pop(worker, None)
            return [(worker, news)]
        worker, cell = next(iter(self._at.items()))
        del self._at[worker]
        record = run_cell(cell, self._place, MEMORY)
        records.write(self._place.run, record)
        return [(worker, record)]

    def close(self) -> None:
        pass


def test_a_cell_is_given_back_lost_and_lost_again(tmp_path: Path) -> None:
    from bench.sweep.pool import Gone, Lost, Returned

    made, free = training(), attack()
    place = Place(run=tmp_path)
    script = [("a", Returned()), ("b", Lost(reason="it died")), ("a", Returned()), ("b", Gone())]
    found: list[records.Record] = []
    with opened(tmp_path):
        todo = schedule([Planned(made, None), Planned(free, None)], tmp_path, RESOLVER)
        crew = Moody(place, script)
        carry_out(todo, place, lambda: crew, watch=Watch(finished=found.append))
    assert sorted(record.status for record in found) == ["done", "done"]
    lost = [("a", Lost(reason="it died")), ("b", Lost(reason="it died"))] * 2
    with opened(tmp_path / "other"):
        todo = schedule([Planned(free, None)], tmp_path / "other", RESOLVER)
        elsewhere = Place(run=tmp_path / "other")
        carry_out(todo, elsewhere, lambda: Moody(elsewhere, lost), watch=Watch(finished=found.append))
    assert (found[-1].status, found[-1].reason) == ("crashed", "it died")


def test_gpus_go_round_among_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [device_of("cuda", number) for number in range(4)] == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]
    assert device_of("cpu", 1) == "cpu"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert device_of("cuda", 3) == "cuda"


@pytest.mark.slow
def test_ctrl_c_leaves_what_is_finished(tmp_path: Path) -> None:
    slow = runs.plugin(tmp_path, "Slow", "time.sleep(0.3)")
    run = tmp_path / "run"
    with runs.bench(*runs.asked(runs.matrix(tmp_path, "slow"), slow), "--out", run) as process:
        runs.until(lambda: runs.settled(run) >= 3)
        process.send_signal(signal.SIGINT)
        code, told = runs.ended(process)
    assert code == 130, told
    assert "The same command goes on from there" in told
    runs.whole(run)
