"""Folders of data sets and of pretrained weights."""

import os
from pathlib import Path


def folders(data_dir: Path | None) -> tuple[Path, ...]:
    """Return the folders in which data sets are searched, in order: `data_dir` (left out if None), the environment
    variable BENCH_DATA, the user's cache. `bench data fetch` writes into the first."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "gradient-leakage-bench"
    places = [data_dir, os.environ.get("BENCH_DATA") or None, cache]
    return tuple(dict.fromkeys(Path(folder).expanduser() for folder in places if folder is not None))
