"""Runs as real processes, for tests of faults: start one, wait for an event, compare what it left."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.record import store as records
from bench.record.files import PART
from bench.record.schema import Record
from bench.record.store import arrays_hash, read_arrays

ATTACK = '''
import time
from dataclasses import dataclass
from bench.attacks.labels_only import LabelsOnly

@dataclass(frozen=True, slots=True, kw_only=True)
class {name}(LabelsOnly):
    """For tests."""

    def reconstruct(self, reading, budget, key):
        {body}
        return LabelsOnly.reconstruct(self, reading, budget, key)
'''
GATE = """
import pathlib, time
from dataclasses import dataclass
from bench.registry import entries

GATE = pathlib.Path({folder!r})

def pass_gate():
    with (GATE / "calls").open("ab", buffering=0) as calls:
        calls.write(b".")
        number = calls.tell()
    while number >= first_to_wait():
        time.sleep(0.01)

def first_to_wait():
    try:
        return int((GATE / "closed").read_text())
    except FileNotFoundError:
        return float("inf")
"""
GATED = '''
_Base{number} = entries.load("attacks", "{attack}")

@dataclass(frozen=True, slots=True, kw_only=True)
class Gated{number}(_Base{number}):
    """Waits at the gate before it answers."""

    name = "gated-{attack}"

    def reconstruct(self, reading, budget, key):
        pass_gate()
        return _Base{number}.reconstruct(self, reading, budget, key)
'''
_SMALL = """
title = "faults"
readings = 2
evaluations = 20
[axes]
dataset = ["digits"]
model = ["mlp"]
attack = [{attacks}]
"""
MATRIX = f"""{_SMALL}
defense = ["none", "prune"]
point = ["type-2", "type-1"]
weights = ["init", {{{{ train = {{{{ rounds = 2 }}}}, round = 2 }}}}]
"""
ONE_EACH = f"""{_SMALL}
defense = ["none"]
point = ["type-2"]
"""


def plugin(folder: Path, name: str, body: str) -> Path:
    """A plug-in file with an attack that does `body` before it answers; its name is the class's in lower case."""
    path = folder / f"{name.lower()}_attack.py"
    path.write_text(ATTACK.format(name=name, body=body))
    return path


class Gate:
    """Attacks that wait at a gate until the test opens it, so that a run cannot be over before its fault comes.

    `plugin` defines `gated-NAME` for each attack; they answer as those do.  The gate is open at first.
    """

    def __init__(self, folder: Path, *attacks: str) -> None:
        self.attacks = tuple(f"gated-{attack}" for attack in attacks)
        self.plugin = folder / "gated_attacks.py"
        classes = (GATED.format(number=number, attack=attack) for number, attack in enumerate(attacks))
        self.plugin.write_text(GATE.format(folder=str(folder)) + "".join(classes))
        self._calls, self._closed, self._from = folder / "calls", folder / "closed", 0

    def close(self, at: int) -> None:
        """Let `at - 1` reconstructions pass from now on; those after them wait."""
        self._from = at
        self._calls.write_bytes(b"")
        part = self._closed.with_suffix(".part")
        part.write_text(str(at))
        part.rename(self._closed)  # whole or not there

    def open(self) -> None:
        self._closed.unlink(missing_ok=True)

    def waiting(self) -> int:
        """How many reconstructions wait, or were killed while they did; those before them have their records."""
        return max(0, self._calls.stat().st_size - self._from + 1)


def matrix(folder: Path, *attacks: str, text: str = MATRIX, name: str = "faults") -> Path:
    path = folder / f"{name}.toml"
    path.write_text(text.format(attacks=", ".join(f'"{attack}"' for attack in attacks)))
    return path


def arguments(matrix: Path, *plugins: Path) -> list[object]:
    """The command line of a run of this matrix, without MLflow; `--out` and what else may follow."""
    options = [part for path in plugins for part in ("--plugin", path)]
    return ["run", "--matrix", matrix, *options, "--no-tracking"]


@dataclass(frozen=True, slots=True)
class Bench:
    """`bench …` under way: its process, and the file that its output goes to."""

    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def output(self) -> str:
        return self.log.read_text("utf-8")

    def until(self, event: Callable[[], object]) -> None:
        """Wait for an event while it runs."""
        until(lambda: event() or self.process.poll() is not None)
        assert event(), self.output

    def kill(self) -> None:
        """Kill it and all that it started, as `kill -9` does."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def ended(self, code: int = 0) -> str:
        """Its output, when it has ended; fails the test where it ends with another code."""
        assert self.process.wait(timeout=600) == code, self.output
        return self.output


@contextmanager
def bench(*arguments: object, inside: Sequence[str] = (), **env: str) -> Iterator[Bench]:
    """`bench …` as a process group of its own; killed at the end if it still runs.

    `inside` begins the command, as of another machine (`tests.machines`)."""
    command = [*inside, sys.executable, "-P", "-m", "bench.cli.main", *map(str, arguments)]
    with tempfile.NamedTemporaryFile() as log:
        process = subprocess.Popen(
            command,
            start_new_session=True,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"} | env,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's & has it ignored
        )
        running = Bench(process, Path(log.name))
        try:
            yield running
        finally:
            if process.poll() is None:
                running.kill()


def ran(*arguments: object, code: int = 0, **env: str) -> str:
    """`bench …` to its end: its output; fails the test where it ends with another code."""
    with bench(*arguments, **env) as running:
        return running.ended(code)


def disturbed(
    gate: Gate, arguments: Sequence[object], disturb: Callable[[], None], inside: Sequence[str] = (), **env: str
) -> None:
    """A run by two workers to its end; `disturb` is called while both are in a cell, after the first records."""
    gate.close(at=5)
    with bench(*arguments, inside=inside, **env) as running:
        running.until(lambda: gate.waiting() == 2)
        disturb()
        gate.open()
        running.ended()


def until(event: Callable[[], object], seconds: float = 600) -> None:
    """Wait for an event; fails the test where it does not come.  The time is a guard, far above what is needed."""
    end = time.monotonic() + seconds
    while not event():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)


def settled(run: Path) -> int:
    """How many cells have a record now."""
    return len(list((run / "records").glob("*.json")))


def whole(run: Path) -> dict[str, Record]:
    """The records of a run, by id, with nothing torn: arrays and weights are there and of their hash."""
    by_id = {}
    for path in (run / "records").iterdir():
        assert path.suffix == ".json" or path.name.endswith(PART), path
        if path.suffix == ".json":
            record = records.read(path)
            assert record.cell.id == path.stem == record.id
            by_id[record.id] = record
            if record.arrays:
                assert arrays_hash(read_arrays(run, record.arrays)) == record.arrays
    return by_id


def answers(run: Path) -> dict[str, tuple[object, ...]]:
    """What must be equal of every record, by id."""
    return {id_: (r.status, r.reason, r.cell, r.provenance, r.result) for id_, r in whole(run).items()}


def assert_equal(run: Path, other: Path) -> None:
    """The same cells answered in both, with equal figures, and no file half written."""
    assert answers(run) == answers(other)
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
