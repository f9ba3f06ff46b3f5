"""Real processes, killed: a run goes on where it was, and its records are the same bit for bit."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

MATRIX = """
title = "a small run for tests"
readings = 2
evaluations = 60
[axes]
dataset = ["digits"]
model = ["dlg-lenet"]
attack = ["dlg", "cpl", "gradinv", "labels-only"]
point = ["type-2", "type-1", "type-0"]
defense = ["none", { name = "gaussian", variance = 1e-2 }]
"""
CELLS = 24


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("matrix") / "small.toml"
    path.write_text(MATRIX)
    return path


@pytest.fixture(scope="module")
def whole(matrix: Path) -> Path:
    """The uninterrupted run, in one worker."""
    run = matrix.parent / "whole"
    done = bench(matrix, run, jobs=1)
    out, err = done.communicate(timeout=300)
    assert done.returncode == 0, err
    assert json.loads(out)["done"] == CELLS
    return run


def bench(matrix: Path, run: Path, *, jobs: int = 2) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "bench.cli.main", "run", "--matrix", str(matrix), "--out", str(run),
         "--jobs", str(jobs), "--no-tracking", "--json", "--device", "cpu"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def answers(run: Path) -> dict[str, Any]:
    """What must be equal: cell, status, summary and victims of every record."""
    found = {}
    for path in (run / "records").glob("*.json"):
        record = json.loads(path.read_text())
        found[path.stem] = {key: record[key] for key in ("cell", "status", "summary", "victims", "arrays")}
    return found


def wait_for(run: Path, count: int, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 240
    while len(list((run / "records").glob("*.json"))) < count:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_two_workers_give_what_one_gives(matrix: Path, whole: Path, tmp_path: Path) -> None:
    done = bench(matrix, tmp_path / "two")
    _, err = done.communicate(timeout=300)
    assert done.returncode == 0, err
    assert answers(tmp_path / "two") == answers(whole)


@pytest.mark.parametrize("after", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_kill_9_loses_the_cells_in_flight_and_no_more(
    matrix: Path, whole: Path, tmp_path: Path, after: int
) -> None:
    run = tmp_path / "killed"
    process = bench(matrix, run)
    wait_for(run, after, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    kept = answers(run)
    assert len(kept) >= after
    assert {name: answers(whole)[name] for name in kept} == kept  # nothing half-written, nothing wrong
    again = bench(matrix, run)
    out, err = again.communicate(timeout=300)
    assert again.returncode == 0, err
    assert answers(run) == answers(whole)
    assert not (run / "kept").exists()


def test_a_killed_worker_is_replaced_and_its_cell_is_tried_again(
    matrix: Path, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "worker"
    process = bench(matrix, run, jobs=1)
    wait_for(run, 2, process)
    os.kill(_worker_of(process.pid), signal.SIGKILL)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    result = json.loads(out)
    assert (result["cells"], result["crashed"]) == (CELLS, 0)
    assert answers(run) == answers(whole)


def test_workers_end_with_their_parent(matrix: Path, tmp_path: Path) -> None:
    run = tmp_path / "orphan"
    process = bench(matrix, run, jobs=1)
    wait_for(run, 1, process)
    worker = _worker_of(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{worker}").exists()


def test_ctrl_c_says_how_to_go_on(matrix: Path, tmp_path: Path) -> None:
    run = tmp_path / "stopped"
    process = bench(matrix, run, jobs=1)
    wait_for(run, 1, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "The same command goes on from there" in " ".join(err.split())
    assert "Traceback" not in err


def _worker_of(parent: int) -> int:
    """The one spawned worker of a run: the child that is not the resource tracker."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    workers = [int(child) for child in children if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()]
    assert len(workers) == 1
    return workers[0]
