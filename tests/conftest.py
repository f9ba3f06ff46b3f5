"""Fixtures that several files of tests share."""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    # Without bytecode, this process and a hundred processes that tests start would each compile torch, in four seconds.
    bytecode = Path(__file__).resolve().parents[1] / ".pytest_cache" / "bytecode"
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(bytecode)
    sys.dont_write_bytecode = False

import numpy as np
import pytest
from tests import runs

gc.disable()  # until all is imported: what a collection finds in modules is not garbage


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files marked `long` run first: no process is left with such a file at the end."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_collection_finish() -> None:
    """No later collection walks the million objects of modules."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with real data: `BENCH_DATA`, or `../shared/data` beside the checkout."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("BENCH_DATA") or beside)
    if not folder.is_dir():
        pytest.skip(f"no real data: BENCH_DATA is not set and {beside} is not there")
    return folder


@pytest.fixture(scope="session")
def session_gate(tmp_path_factory: pytest.TempPathFactory) -> runs.Gate:
    gate = runs.Gate(tmp_path_factory.mktemp("gate"), "labels-only", "cpl")
    gate.plugin.write_bytes(gate.plugin.read_bytes().replace(b"\n", b"\r\n"))  # on its way nothing may change
    return gate


@pytest.fixture
def gate(session_gate: runs.Gate) -> Iterator[runs.Gate]:
    """The gate of `gated`, open."""
    session_gate.open()
    yield session_gate
    session_gate.open()


@pytest.fixture(scope="session")
def gated(session_gate: runs.Gate, tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """The command line of a matrix that trains, and whose attacks wait at the gate where it is closed."""
    matrix = runs.matrix(tmp_path_factory.mktemp("matrix"), *session_gate.attacks)
    return runs.arguments(matrix, session_gate.plugin)


@pytest.fixture(scope="session")
def gated_alone(gated: list[object], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same matrix, by one process on this machine."""
    run = tmp_path_factory.mktemp("alone") / "run"
    runs.ran(*gated, "--jobs", "1", "--out", run)
    return run


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def store_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose store has its schema: making one takes seconds."""
    from bench.tracking import upload

    folder = tmp_path_factory.mktemp("runs")
    (folder / "first" / "records").mkdir(parents=True)
    upload.open_target(folder / "first")
    return folder
