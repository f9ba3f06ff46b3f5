"""Real processes, killed: a run goes on where it was, and its records are the same bit for bit."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests import runs
from tests.command import in_this_process
from tests.workers import ScriptedPool

from bench.cli.main import cli
from bench.errors import Terminated
from bench.sweep.pool import Event

pytestmark = pytest.mark.long

MATRIX = """
title = "a small run for tests"
readings = 2
evaluations = 30
[axes]
dataset = ["digits"]
model = ["mlp"]
attack = {attacks}
point = ["type-2", "type-1"]
defense = ["none", {{ name = "gaussian", variance = 1e-2 }}]
"""
CELLS = 16


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> runs.Gate:
    return runs.Gate(tmp_path_factory.mktemp("resume"), "dlg", "cpl", "gradinv", "labels-only")


@pytest.fixture
def gate(built: runs.Gate) -> Iterator[runs.Gate]:
    built.open()
    yield built
    built.open()


@pytest.fixture(scope="module")
def arguments(built: runs.Gate) -> list[object]:
    matrix = built.plugin.with_name("small.toml")
    matrix.write_text(MATRIX.format(attacks=list(built.attacks)))
    return [*runs.arguments(matrix, built.plugin), "--json", "--device", "cpu", "--out"]


@pytest.fixture(scope="module")
def whole(arguments: list[object], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted run, in one worker."""
    run = tmp_path_factory.mktemp("whole") / "run"
    output = runs.ran(*arguments, run, "--jobs", 1)
    assert json.loads(output)["done"] == CELLS
    return run


@pytest.mark.slow  # tests/test_faults.py has processes killed at any point
@pytest.mark.parametrize("after", [pytest.param(7, marks=pytest.mark.slow), 1])
def test_kill_9_loses_the_cells_in_flight_and_no_more(
    gate: runs.Gate, arguments: list[object], whole: Path, tmp_path: Path, after: int
) -> None:
    """And two workers, before and after, come to what one worker comes to."""
    run = tmp_path / "killed"
    gate.close(at=after + 1)
    with runs.bench(*arguments, run, "--jobs", 2) as bench:
        bench.until(lambda: gate.waiting() == 2)
        bench.kill()
    kept = runs.answers(run)
    assert after <= len(kept) <= CELLS - 2
    assert {id_: runs.answers(whole)[id_] for id_ in kept} == kept  # nothing half-written, nothing wrong
    gate.open()
    runs.ran(*arguments, run, "--jobs", 2)
    runs.assert_equal(run, whole)
    assert not (run / "kept").exists()


@pytest.mark.slow  # tests/test_faults.py has workers that die, and what becomes of their cells
def test_a_killed_worker_is_replaced_and_its_cell_is_tried_again(
    gate: runs.Gate, arguments: list[object], whole: Path, tmp_path: Path
) -> None:
    gate.close(at=3)
    with runs.bench(*arguments, tmp_path / "run", "--jobs", 1) as bench:
        bench.until(gate.waiting)
        os.kill(_worker_of(bench.process.pid), signal.SIGKILL)
        gate.open()
        output = bench.ended()
    result = json.loads(output)
    assert (result["cells"], result["crashed"]) == (CELLS, 0)
    runs.assert_equal(tmp_path / "run", whole)


@pytest.mark.slow  # tests/test_faults.py has a worker without a parent
def test_workers_end_with_their_parent(gate: runs.Gate, arguments: list[object], tmp_path: Path) -> None:
    gate.close(at=2)
    with runs.bench(*arguments, tmp_path / "orphan", "--jobs", 1) as bench:
        bench.until(gate.waiting)
        worker = Path(f"/proc/{_worker_of(bench.process.pid)}")
        bench.process.kill()
        bench.process.wait()
        runs.until(lambda: not worker.exists())


@pytest.mark.parametrize(("end", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
def test_ctrl_c_says_how_to_go_on(
    end: type[BaseException], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without processes: the third wait for an event is interrupted."""
    waits, events = iter(range(3)), ScriptedPool.events

    def interrupted(pool: ScriptedPool) -> list[tuple[str, Event]]:
        if next(waits) == 2:
            raise end
        return events(pool)

    monkeypatch.setattr(ScriptedPool, "events", interrupted)
    in_this_process(monkeypatch)
    run = tmp_path / "stopped"
    arguments = runs.arguments(runs.matrix(tmp_path, "labels-only"))
    done = CliRunner().invoke(cli, [*map(str, arguments), "--out", str(run)])
    assert done.exit_code == code
    assert "2 of 9 cells are on disk. The same command goes on from there" in " ".join(done.output.split())
    assert len(runs.whole(run)) == 2
    monkeypatch.setattr(ScriptedPool, "events", events)
    assert CliRunner().invoke(cli, [*map(str, arguments), "--out", str(run)]).exit_code == 0
    assert len(runs.whole(run)) == 9


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_in_a_terminal(number: int, code: int, gate: runs.Gate, arguments: list[object], tmp_path: Path) -> None:
    gate.close(at=3)
    with runs.bench(*arguments, tmp_path / "stopped", "--jobs", 1) as bench:
        bench.until(gate.waiting)
        bench.process.send_signal(number)
        output = bench.ended(code=code)
    assert "The same command goes on from there" in " ".join(output.split())
    assert "Traceback" not in output
    assert len(runs.whole(tmp_path / "stopped")) >= 2  # what is finished stays


def _worker_of(parent: int) -> int:
    """The one spawned worker of a run: the child that is not the resource tracker."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    workers = [int(child) for child in children if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()]
    assert len(workers) == 1
    return workers[0]
