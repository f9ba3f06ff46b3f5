"""The tracking store (MLflow's database): its address, and notes on disk about uploaded records.

    RUN/../mlflow.db                     the default store, shared by all runs in a folder
    RUN/synced/<cell id>.json            notes: store address → experiment, record's SHA-256, MLflow run's id

This module does not import mlflow, because the import takes long."""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from bench.errors import BenchError

ENVIRONMENT = {
    # MLflow accepts only the word "true", set before its import (measured).
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    # A user's folder named `datasets` must not shadow a library of the child process.
    "PYTHONSAFEPATH": "1",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadResult:
    """Result of an upload to the MLflow store: numbers of uploaded, skipped, failed and waiting records, and the reason
    for missing records."""

    count: int = 0
    """Number of uploaded records."""
    skipped: int = 0
    """Number of records that the store already had."""
    failed: int = 0
    """Number of records that the store refused."""
    left: int = 0
    """Number of records that wait for the next upload."""
    rows: int = 0
    """Number of uploaded rows of boards (tables of defenses)."""
    reason: str | None = None
    """Reason for refused or waiting records; None if there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Note on disk that a record has been uploaded: the MLflow run, and the record's hash. The next upload skips
    unchanged records."""

    experiment: str
    """Name of the MLflow experiment."""
    sha256: str
    """Hash of the record."""
    run: str
    """Id of the MLflow run."""


def default_uri(run: Path) -> str:
    """Return the address of the default MLflow store: an sqlite file in the folder that holds the run folder. Raises
    `BenchError` for ? or # in the path."""
    path = run.resolve().parent / "mlflow.db"
    if any(character in str(path) for character in "?#"):
        raise BenchError(f"{path.parent}: a store's path cannot hold ? or #; rename the folder")
    return f"sqlite:///{path}"


def checked_uri(run: Path, uri: str | None) -> str:
    """Check the address `uri` of an MLflow store, and return the address, with an absolute path for sqlite. None gives
    the default store in the folder that holds `run`. Raises `BenchError` for an invalid address."""
    if uri is None:
        return default_uri(run)
    try:
        scheme = urlsplit(uri).scheme
    except ValueError:
        scheme = ""
    database = uri.removeprefix("sqlite:///")
    if "://" not in uri or scheme in ("", "file") or (scheme == "sqlite" and database in ("", uri)):
        raise BenchError(
            f"tracking uri must be http://…, https://… or sqlite:///…, got {shown(uri)!r} "
            "(MLflow 3 has no store in plain files)"
        )
    return f"sqlite:///{Path(database).resolve()}" if scheme == "sqlite" else uri


def shown(uri: str) -> str:
    """Return the address `uri` of an MLflow store without user name and password, for notes and messages."""
    scheme, mark, rest = uri.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}"


def experiment_name(run: Path) -> str:
    """Return the name of the MLflow experiment for the run folder `run`: the folder's name, so a run's shards share an
    experiment."""
    return run.resolve().name


def board_name(run: Path, board: str) -> str:
    """Return the name of the MLflow experiment for a `board` (table of defenses) of the run folder `run`, such as
    `quickstart · board · digits`. An empty `board` gives the common beginning of all boards' names."""
    return f"{experiment_name(run)} · board · {board}"


def digest(content: bytes) -> str:
    """Return the SHA-256 of `content` in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def read_note(run: Path, cell_id: str, uri: str) -> Note | None:
    """Read the `Note` about an earlier upload of a record to the MLflow store at `uri`; None if the record was never
    uploaded, or the note is damaged. `run` is the run folder, and `cell_id` the record's id."""
    try:
        return Note(**json.loads(_note_path(run, cell_id).read_text("utf-8"))[shown(uri)])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write_note(run: Path, cell_id: str, uri: str, note: Note) -> None:
    """Note on disk that a record has been uploaded, so that the next upload skips the record. The record has the id
    `cell_id` in the run folder `run`; `uri` is the address of the MLflow store, and `note` the content. Notes about
    other stores remain."""
    path = _note_path(run, cell_id)
    try:
        notes = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        notes = {}
    notes = notes if isinstance(notes, dict) else {}
    # Not flushed to disk, to save milliseconds: a lost note only costs a search in the store.
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps({**notes, shown(uri): asdict(note)}, indent=1) + "\n", "utf-8")
    part.replace(path)


def unsynced(run: Path, uri: str) -> int:
    """Return the number of records in the run folder `run` that are not yet uploaded to the MLflow store at `uri`,
    according to the notes on disk (`Note`)."""
    notes = ((path, read_note(run, path.stem, uri)) for path in (run / "records").glob("*.json"))
    return sum(note is None or note.sha256 != digest(path.read_bytes()) for path, note in notes)


def beat(run: Path) -> None:
    """Signal progress of an upload to the process that waits for the upload (`heartbeat`): the modification time of the
    folder RUN/synced becomes now. `run` is the run folder."""
    with suppress(OSError):
        os.utime(run / "synced")


def heartbeat(run: Path) -> int:
    """Return the time of an upload's latest progress in nanoseconds, as `beat` left it in the run folder `run`; 0
    before the first progress. If the time does not change for long, the upload hangs."""
    try:
        return (run / "synced").stat().st_mtime_ns
    except OSError:
        return 0


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock on the file `path` against other processes inside a `with` statement; a crashed process loses its
    lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _note_path(run: Path, cell_id: str) -> Path:
    return run / "synced" / f"{cell_id}.json"
