"""Records for the commands: by id prefix, by path, or a whole run."""

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
    """A record by file path, or by id prefix in `run` (None: any run below `runs/`)."""
    path = Path(text)
    if path.suffix == ".json" or path.is_file():
        return records.read(path)
    return by_prefix(text, run)[1]


def by_prefix(prefix: str, run: Path | None) -> tuple[Path, Record]:
    """The record with this id prefix, and its run: `run`, or the newest run with a match.

    Raises `BenchError` for no match, or several matches in a run.
    """
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
    """Readable records of a run; unreadable records are named and counted on standard error."""
    found, faults = records.readable(run)
    for fault in faults:
        click.echo(sanitize(f"passed over: {fault}", LONG), err=True)
    if faults:
        click.echo(f"{len(faults)} of {len(found) + len(faults)} records of {run} were passed over", err=True)
    return found


def compact_records(run: Path, *, whole: bool = False) -> list[Record]:
    """All records of a run in compact form; `whole`: raise for an unreadable record."""
    gc.disable()  # none of what is read is garbage, and looking for it takes a quarter of the time
    try:
        return list(map(Interner(), records.records(run) if whole else shown_records(run)))
    finally:
        gc.freeze()  # nor will it be
        gc.enable()
