"""A cell's input and output files, named by their paths in a run folder.

Used for workers without access to the run folder (`bench.sweep.cluster`), merges (`bench.sweep.merge`) and repeated
cells (`bench run --cell`).
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
from bench.record.schema import Record

Files = Mapping[str, bytes]
_HASH = "[0-9a-f]{64}"
_SUFFIX = re.compile(r"\.[a-z]{2,12}")
_NAME = re.compile(
    rf"records/{_HASH}\.json|arrays/{_HASH}\.npz|files/{_HASH}{_SUFFIX.pattern}"
    rf"|weights/{_HASH}/(round-[0-9]{{1,9}}(\.[0-9a-f]{{16}}\.states)?|going-on)\.safetensors"
)


def inputs(cell: AnyCell, run: Path) -> dict[str, bytes]:
    """Collect the files that a cell (experiment) needs from the run folder `run`, path in the run folder → content, for
    a copy of the cell elsewhere, such as on another machine. These are the attacked checkpoint with its training's
    record and defense states, an interrupted training's state, a weights file, or the records of earlier attacks in a
    cascade."""
    if not isinstance(cell, AttackCell):
        return _content(run, [resume.place(run, cell.id)])
    before = _content(run, (records.record_path(run, each) for each in cell.after))
    match cell.weights:
        case FileWeights() as weights:
            try:
                return before | {file_name(weights): Path(weights.path).read_bytes()}
            except OSError:  # the file is gone: the cell's record will say so
                return before
        case CheckpointWeights(training=training) as weights:
            checkpoints = [checkpoint_path(run, training, round_) for round_ in weights.rounds]
            states = (path for each in checkpoints for path in each.parent.glob(f"{each.stem}.*.states.safetensors"))
            return before | _content(run, [records.record_path(run, training), *checkpoints, *states])
    return before


def file_name(weights: FileWeights) -> str:
    """Return the name under which a weights file travels among the input files of a cell (experiment), made from the
    file's content hash and suffix."""
    suffix = Path(weights.path).suffix
    return f"files/{weights.sha256}{suffix if _SUFFIX.fullmatch(suffix) else '.unknown'}"


def outputs(run: Path, sent: Files) -> dict[str, bytes]:
    """Collect the files that a cell (experiment) wrote to the folder `run`, path → content, for a copy of the result to
    another run folder. `sent` are the cell's input files, path → content; unchanged input files are left out."""
    content = _content(run, run.rglob("*"))
    return {name: data for name, data in content.items() if _NAME.fullmatch(name) and sent.get(name) != data}


def unpack(run: Path, files: Files) -> None:
    """Write `files`, path → content, into the run folder `run`. Raises `RecordError`, before any write, for a path that
    does not belong to a run folder, and `StorageError` for a failed write."""
    for name in files:
        if not _NAME.fullmatch(name):
            raise RecordError(f"{name!r:.200}: not a file of a run folder")
    for name, content in files.items():
        write_atomically(run / name, content)


def admit(run: Path, files: Files, cell_id: str) -> Record:
    """Accept a worker's result: write its `files` (path → content) for the cell (experiment) with id `cell_id` to
    the run folder `run`, the record last; return the record. Raises `RecordError`, before any write, unless the files
    hold exactly one valid record for this cell."""
    names = [name for name in files if name.startswith("records/")]
    if len(names) != 1:
        raise RecordError(f"{len(names)} records came back for one cell")
    try:
        record = records.parse(files[names[0]].decode(), names[0])
    except UnicodeDecodeError:
        raise RecordError(f"{names[0]}: not a record") from None
    if not record.id == record.cell.id == cell_id:
        raise RecordError(f"the answer to {cell_id[:8]} is of {record.cell.id[:8]}")
    unpack(run, {name: content for name, content in files.items() if name != names[0]})
    records.write(run, record)
    if record.training is not None:
        resume.place(run, record.id).unlink(missing_ok=True)
    return record


def _content(run: Path, paths: Iterable[Path]) -> dict[str, bytes]:
    try:
        files = sorted(path for path in paths if path.is_file())
        return {path.relative_to(run).as_posix(): path.read_bytes() for path in files}
    except OSError as error:
        raise StorageError(f"{run}: cannot be read ({error}); see its permissions") from None
