"""Read records (results of cells) for the commands: by the first digits of a cell's id, by file path, or all records in
a run."""

import gc
from pathlib import Path

import click

from bench.errors import RecordError
from bench.record import store as records
from bench.record.compact import Interner
from bench.record.runs import checked_run, runs_by_age
from bench.record.schema import Record
from bench.sanitize import LONG, sanitize


def by_reference(text: str, run: Path | None) -> Record:
    """Return the record (a cell's result) that `text` names: a file path, or the first digits of a cell's id. The id is
    searched in the run folder `run`; None searches all runs below `runs/`. Raises `RecordError` if no such record
    exists."""
    path = Path(text)
    if path.suffix == ".json" or path.is_file():
        return records.read(path)
    return by_prefix(text, run)[1]


def by_prefix(prefix: str, run: Path | None) -> tuple[Path, Record]:
    """Return (run folder, record) of the cell (an experiment) whose id begins with `prefix`. The id is searched in the
    run folder `run`; None takes the newest run below `runs/` with a match. Raises `BenchError` if no record matches, or
    if several records of a run match."""
    if run is not None:
        return run, records.find(checked_run(run), prefix)
    searched = runs_by_age()
    for folder in searched:
        if prefix.isalnum() and any((folder / "records").glob(f"{prefix}*.json")):
            return folder, records.find(folder, prefix)
    raise RecordError(
        f"runs/: no record in {len(searched)} runs has an id that starts with {prefix!r}; `bench show` lists ids"
    )


def shown_records(run: Path) -> list[Record]:
    """Return the readable records (results of cells) in the run folder `run`. The faults and the number of unreadable
    records are printed on standard error."""
    found, faults = records.readable(run)
    for fault in faults:
        click.echo(sanitize(f"passed over: {fault}", LONG), err=True)
    if faults:
        click.echo(f"{len(faults)} of {len(found) + len(faults)} records of {run} were passed over", err=True)
    return found


def compact_records(run: Path, *, whole: bool = False) -> list[Record]:
    """Return the records (results of cells) of the run folder `run`, reduced to the fields that a ranking needs, to
    save memory. Unreadable records are skipped with a message; with `whole` True they raise `RecordError`."""
    gc.disable()  # reading creates no garbage, and searching for garbage takes a quarter of the time
    try:
        return list(map(Interner(), records.records(run) if whole else shown_records(run)))
    finally:
        gc.freeze()  # the records stay in use
        gc.enable()
