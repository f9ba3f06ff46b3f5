"""The files of one cell, by their paths in a run folder: what it is answered from, and what it leaves.

They travel to a worker that does not see the run folder and back (`bench.sweep.cluster`), from one run folder to
another (`bench.sweep.merge`), and to where a cell is answered again (`bench run --cell`).
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from bench.cell import AnyCell, AttackCell, CheckpointWeights, FileWeights
from bench.errors import RecordError, StorageError
from bench.federated import resume
from bench.record import store as records
from bench.record.checkpoints import checkpoint_path
from bench.record.files import write_atomically
from bench.record.store import Record

Files = Mapping[str, bytes]
_HASH = "[0-9a-f]{64}"
_SUFFIX = re.compile(r"\.[a-z]{2,12}")
_NAME = re.compile(
    rf"records/{_HASH}\.json|arrays/{_HASH}\.npz|given/{_HASH}{_SUFFIX.pattern}"
    rf"|weights/{_HASH}/(round-[0-9]{{1,9}}(\.[0-9a-f]{{16}}\.states)?|going-on)\.safetensors"
)


def needed(cell: AnyCell, run: Path) -> dict[str, bytes]:
    """What of a run folder a cell is answered from: a checkpoint with the record and the states that go with
    it, a training that was cut off, a weights file from elsewhere."""
    if isinstance(cell, AttackCell):
        given = cell.weights
        if isinstance(given, FileWeights):
            try:
                return {given_name(given): Path(given.path).read_bytes()}
            except OSError:  # it is gone: who answers the cell says so in its record
                return {}
        if not isinstance(given, CheckpointWeights):
            return {}
        checkpoint = checkpoint_path(run, given.training, given.round)
        states = checkpoint.parent.glob(f"{checkpoint.stem}.*.states.safetensors")
        paths = [records.record_path(run, given.training), checkpoint, *states]
    else:
        paths = [resume.place(run, cell.id)]
    return _content(run, (path for path in paths if path.exists()))


def given_name(weights: FileWeights) -> str:
    """What a weights file from elsewhere is called on its way; by what its name ends it is read."""
    suffix = Path(weights.path).suffix
    return f"given/{weights.sha256}{suffix if _SUFFIX.fullmatch(suffix) else '.unknown'}"


def left(run: Path, given: Files) -> dict[str, bytes]:
    """What a cell left in a folder that had only what was `given`."""
    content = _content(run, (path for path in run.rglob("*") if path.is_file()))
    return {name: one for name, one in content.items() if _NAME.fullmatch(name) and given.get(name) != one}


def unpack(run: Path, files: Files) -> None:
    """Put files where they belong.  Raises `RecordError` for a name that is none of a run folder's, before
    anything is written, and `StorageError` where the folder does not take it."""
    for name in files:
        if not _NAME.fullmatch(name):
            raise RecordError(f"{name!r:.200}: not a file of a run folder")
    for name, content in files.items():
        write_atomically(run / name, content)


def admit(run: Path, files: Files, cell_id: str) -> Record:
    """Take in what a worker sent for that cell, its record last; returns the record.

    Raises `RecordError` where there is not exactly one, or where it is none or another cell's, before anything is
    written.
    """
    told = [name for name in files if name.startswith("records/")]
    if len(told) != 1:
        raise RecordError(f"{len(told)} records came back for one cell")
    try:
        record = records.parse(files[told[0]].decode(), told[0])
    except UnicodeDecodeError:
        raise RecordError(f"{told[0]}: not a record") from None
    cell = records.cell_of(record)
    if cell.id != cell_id:
        raise RecordError(f"the answer to {cell_id[:8]} is of {cell.id[:8]}")
    unpack(run, {name: content for name, content in files.items() if name != told[0]})
    records.write(run, record)
    if cell.kind == "training" and record.status == "done":
        resume.place(run, record.id).unlink(missing_ok=True)
    return record


def _content(run: Path, paths: Iterable[Path]) -> dict[str, bytes]:
    try:
        return {path.relative_to(run).as_posix(): path.read_bytes() for path in sorted(paths)}
    except OSError as error:
        raise StorageError(f"{run}: cannot be read ({error}); see its permissions") from None
