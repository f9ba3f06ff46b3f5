"""Load a data set by name: find its folders, add the remedy to its errors, split it."""

from dataclasses import replace
from pathlib import Path

from bench.datasets.base import Data, Dataset, Raw, split
from bench.errors import DataError, MissingDataError, MissingExtraError
from bench.folders import folders


def read(dataset: Dataset, name: str, data_dir: Path | None) -> Raw:
    """Read the data set `name` in the source's order, with its kind of data.

    - `dataset`: loader of the data set.
    - `data_dir`: folder searched before the default folders; None searches the default folders only.

    Errors name the data set and the remedy. Raises `MissingDataError` for missing and `DataError` for damaged files."""
    try:
        raw = dataset.load(folders(data_dir))
        return replace(raw, kind=raw.kind or dataset.kind)
    except MissingExtraError as error:
        error.args = (f"{name}: {error}",)
        raise
    except MissingDataError as error:
        remedy = f"; run `bench data fetch {name}`" if dataset.fetchable else ""
        raise MissingDataError(f"{name}: {error}{remedy}") from None
    except DataError as error:
        remedy = f"; delete it and run `bench data fetch {name}`" if dataset.fetchable else ""
        raise DataError(f"{name}: {error}{remedy}") from None


def load(dataset: Dataset, name: str, data_dir: Path | None = None) -> Data:
    """Read the data set `name`, check its values and divide it into splits.

    - `dataset`: loader of the data set.
    - `data_dir`: folder searched before the default folders; None searches the default folders only."""
    return split(read(dataset, name, data_dir), name=name, private=dataset.private)
