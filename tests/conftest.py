"""Fixtures that several files of tests share."""

import os
from pathlib import Path

import pytest
from tests import runs


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with real data: `BENCH_DATA`, or `../shared/data` beside the checkout."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("BENCH_DATA") or beside)
    if not folder.is_dir():
        pytest.skip(f"no real data: BENCH_DATA is not set and {beside} is not there")
    return folder


@pytest.fixture(scope="session")
def slow_asked(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """The command line of a matrix whose cells take a while, and train."""
    folder = tmp_path_factory.mktemp("asked")
    slow = runs.plugin(folder, "Slow", "time.sleep(0.2)")
    slow.write_bytes(slow.read_bytes().replace(b"\n", b"\r\n"))  # on its way nothing of it may change
    return runs.asked(runs.matrix(folder, "slow", "cpl"), slow)


@pytest.fixture(scope="session")
def slow_alone(slow_asked: list[object], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same matrix, by one process on this machine."""
    run = tmp_path_factory.mktemp("alone") / "run"
    code, told = runs.ran(*slow_asked, "--jobs", "1", "--out", run)
    assert code == 0, told
    return run
