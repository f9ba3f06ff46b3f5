"""Records for the commands that show them: by id prefix or path, or a whole run."""

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
    """A record by the path of its file, or by prefix in `run`, or if that is None in any run below `runs/`."""
    path = Path(text)
    if path.suffix == ".json" or path.is_file():
        return records.read(path)
    return by_prefix(text, run)[1]


def by_prefix(prefix: str, run: Path | None) -> tuple[Path, Record]:
    """The one record whose id starts so, and its run: in `run`, or in the newest run that has one.

    Raises `BenchError` for none, or for several in that run.
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
    """The records of a run that can be read; what cannot is named and counted, on standard error."""
    found, faults = records.readable(run)
    for fault in faults:
        click.echo(sanitize(f"passed over: {fault}", LONG), err=True)
    if faults:
        click.echo(f"{len(faults)} of {len(found) + len(faults)} records of {run} were passed over", err=True)
    return found


def compact_records(run: Path, *, whole: bool = False) -> list[Record]:
    """All records of a run, with what boards and gates read of them; `whole`: one that cannot be read raises."""
    gc.disable()  # none of what is read is garbage, and looking for it takes a quarter of the time
    try:
        return list(map(Interner(), records.records(run) if whole else shown_records(run)))
    finally:
        gc.freeze()  # nor will it be
        gc.enable()
