"""A data set by name: where to look, what to say when it is not there, and its five splits."""

import os
from pathlib import Path

from bench.datasets.base import Data, Dataset, Raw, split
from bench.datasets.files import MissingDataError
from bench.errors import DataError
from bench.record.metrics import DataKind


def folders(data_dir: Path | None) -> tuple[Path, ...]:
    """Where data are looked for, in order: `--data-dir`, `BENCH_DATA`, the user's cache.

    The first is where `bench data fetch` puts what it gets.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "gradient-leakage-bench"
    places = [data_dir, os.environ.get("BENCH_DATA") or None, cache]
    return tuple(dict.fromkeys(Path(folder).expanduser() for folder in places if folder is not None))


def read(dataset: Dataset, name: str, data_dir: Path | None) -> Raw:
    """The data as their source has them; errors name the data set and the remedy.

    Raises `MissingDataError` for what is not there and `DataError` for what is damaged.
    """
    try:
        return dataset.load(folders(data_dir))
    except MissingDataError as error:
        remedy = f"; run `bench data fetch {name}`" if dataset.remotes else ""
        raise MissingDataError(f"{name}: {error}{remedy}") from None
    except DataError as error:
        remedy = f"; delete it and run `bench data fetch {name}`" if dataset.remotes else ""
        raise DataError(f"{name}: {error}{remedy}") from None


def read_kind(dataset: Dataset, name: str, data_dir: Path | None) -> tuple[Raw, DataKind]:
    """The data as their source has them, and what they are: flat rows are a table, whatever their loader mostly reads.

    Raises as `read` does.
    """
    raw = read(dataset, name, data_dir)
    return raw, "table" if raw.train_inputs.ndim == 2 else dataset.kind


def load(dataset: Dataset, name: str, data_dir: Path | None = None) -> Data:
    """Read, check and split."""
    raw, kind = read_kind(dataset, name, data_dir)
    return split(raw, name=name, kind=kind, private=dataset.private)
