"""Fixtures that several files of tests share."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with real data: `BENCH_DATA`, or `../shared/data` beside the checkout."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("BENCH_DATA") or beside)
    if not folder.is_dir():
        pytest.skip(f"no real data: BENCH_DATA is not set and {beside} is not there")
    return folder
