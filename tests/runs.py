"""Runs as real processes, for tests of faults: start one, wait for a sign of it, compare what it left."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.record import store as records
from bench.record.files import PART
from bench.record.store import Record, arrays_hash, read_arrays

SLOW = '''
import time
from dataclasses import dataclass
from bench.attacks.labels_only import LabelsOnly

@dataclass(frozen=True, slots=True, kw_only=True)
class {name}(LabelsOnly):
    """Takes its time, for tests."""

    def reconstruct(self, reading, budget, key):
        {body}
        return LabelsOnly.reconstruct(self, reading, budget, key)
'''
MATRIX = """
title = "faults"
readings = 2
evaluations = 20
[axes]
dataset = ["digits"]
model = ["mlp"]
attack = [{attacks}]
defense = ["none", "prune"]
point = ["type-2", "type-1"]
weights = ["init", {{ train = {{ rounds = 2 }}, round = 2 }}]
"""


def plugin(folder: Path, name: str, body: str) -> Path:
    """A plug-in file with an attack that does `body` before it answers; its name is the class's in lower case."""
    path = folder / f"{name.lower()}_attack.py"
    path.write_text(SLOW.format(name=name, body=body))
    return path


def matrix(folder: Path, *attacks: str) -> Path:
    path = folder / "faults.toml"
    path.write_text(MATRIX.format(attacks=", ".join(f'"{name}"' for name in attacks)))
    return path


def asked(matrix: Path, *plugins: Path) -> list[object]:
    """The command line of a run of this matrix, without MLflow; `--out` and what else may follow."""
    return [
        "run",
        "--matrix",
        matrix,
        *(part for one in plugins for part in ("--plugin", one)),
        "--no-tracking",
    ]


@contextmanager
def bench(*arguments: object, inside: Sequence[str] = (), **env: str) -> "Iterator[subprocess.Popen[str]]":
    """`bench …` as a process group of its own, its words on one pipe; killed at the end if it still runs.

    `inside` begins the command, as of another machine (`tests.machines`)."""
    command = [*inside, sys.executable, "-P", "-m", "bench.cli.main", *map(str, arguments)]
    process = subprocess.Popen(
        command, text=True, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"} | env,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            kill(process)
        assert process.stdout is not None
        process.stdout.close()


def ran(*arguments: object, **env: str) -> tuple[int, str]:
    """`bench …` to its end: exit code, and what it said."""
    with bench(*arguments, **env) as process:
        return ended(process)


def ended(process: "subprocess.Popen[str]", seconds: float = 240) -> tuple[int, str]:
    """Its exit code and what it said."""
    told, _ = process.communicate(timeout=seconds)
    return process.returncode, told


def kill(process: "subprocess.Popen[str]") -> None:
    """Kill a process and all that it started, as `kill -9` does."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def until(sign: Callable[[], bool], seconds: float = 120) -> None:
    """Wait for a sign; fails the test where it does not come."""
    end = time.monotonic() + seconds
    while not sign():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)


def settled(run: Path) -> int:
    """How many cells have a record now."""
    return len(list((run / "records").glob("*.json")))


def whole(run: Path) -> dict[str, Record]:
    """The records of a run, by id, with nothing torn: arrays and weights are there and of their hash."""
    found = {}
    for path in (run / "records").iterdir():
        assert path.suffix == ".json" or path.name.endswith(PART), path
        if path.suffix == ".json":
            record = records.read(path)
            assert records.cell_of(record).id == path.stem == record.id
            found[record.id] = record
            if record.arrays:
                assert arrays_hash(read_arrays(run, record.arrays)) == record.arrays
    return found


def assert_equal(run: Path, other: Path) -> None:
    """The same cells answered in both, with equal figures, and nothing lying about."""
    here, there = whole(run), whole(other)
    assert here.keys() == there.keys()
    for id_, record in here.items():
        for field in ("status", "reason", "cell", "source", "summary", "victims", "arrays"):
            assert getattr(record, field) == getattr(there[id_], field), (id_, field)
    assert _weights(run) == _weights(other)
    assert not list(run.rglob(f"*{PART}"))


def _weights(run: Path) -> dict[str, bytes]:
    paths = (run / "weights").rglob("*.safetensors")
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in paths}


@contextmanager
def tiny_disk(folder: Path, size: str = "1m") -> Iterator[Path]:
    """A file system of its own of this size; the test is skipped where none can be mounted."""
    folder.mkdir()
    mount = shutil.which("mount")
    if (
        mount is None
        or subprocess.run(
            [mount, "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("a full disk needs a file system of its own: this user may not mount one")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
