"""Records for the commands that show them: by id prefix or path, with what they say sanitized."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.errors import MALFORMED, RecordError
from bench.record import store as records
from bench.record.compact import Sharing
from bench.record.store import Record
from bench.tracking import store


def by_reference(text: str, run: Path | None) -> tuple[Path, Record]:
    """A record and its run folder, by the path of its file or by prefix in `run` (the newest if None)."""
    path = Path(text)
    if path.suffix == ".json" or path.is_file():
        return path.resolve().parent.parent, records.read(path)
    folder = store.checked_run(run)
    return folder, records.find(folder, text)


def compared(run: Path) -> list[Record]:
    """All records of a run, cut to what boards and gates read."""
    gc.disable()  # none of what is read is garbage, and looking for it takes a quarter of the time
    try:
        return list(map(Sharing(), records.records(run)))
    finally:
        gc.enable()


@contextmanager
def understood(record: Record) -> Iterator[None]:
    """What a record from elsewhere lacks, or has of another type, is its own fault and one line."""
    try:
        yield
    except MALFORMED as error:
        raise RecordError(
            f"record {record.id[:8]}: its fields are not a record's ({type(error).__name__}: {error}); "
            "run the cell again"
        ) from None


@contextmanager
def together(where: str) -> Iterator[None]:
    """As `understood`, of many records that were read as one."""
    try:
        yield
    except MALFORMED as error:
        raise RecordError(
            f"{where}: a record's fields are not a record's ({type(error).__name__}: {error}); run it again"
        ) from None
