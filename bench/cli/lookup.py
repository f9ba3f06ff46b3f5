"""Records for the commands that show them: by id prefix or path, or a whole run."""

import gc
from pathlib import Path

from bench.record import store as records
from bench.record.compact import Interner
from bench.record.runs import checked_run
from bench.record.schema import Record


def by_reference(text: str, run: Path | None) -> Record:
    """A record by the path of its file, or by prefix in `run` (the newest if None)."""
    path = Path(text)
    if path.suffix == ".json" or path.is_file():
        return records.read(path)
    return records.find(checked_run(run), text)


def compact_records(run: Path) -> list[Record]:
    """All records of a run, with what boards and gates read of them."""
    gc.disable()  # none of what is read is garbage, and looking for it takes a quarter of the time
    try:
        return list(map(Interner(), records.records(run)))
    finally:
        gc.freeze()  # nor will it be
        gc.enable()
