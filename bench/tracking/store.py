"""Where a run's records go to be looked at: the store's address, and notes of what it has.

    RUN/../mlflow.db                     the default store, shared by the runs of one folder
    RUN/synced/<cell id>.json            store address → experiment, record's SHA-256, MLflow run

Nothing here imports mlflow, so that the runner and the command line can ask without waiting for it.
"""

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
    # Only the word "true" counts, and only before the import (measured).
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    # A user's folder named `datasets` must not shadow a library of the child process.
    "PYTHONSAFEPATH": "1",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadResult:
    """What an upload came to, in records; `rows` of the board written; `reason` says why some are left."""

    count: int = 0
    skipped: int = 0
    failed: int = 0
    left: int = 0
    rows: int = 0
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What one store has of one record."""

    experiment: str
    sha256: str
    run: str


def default_uri(run: Path) -> str:
    """The sqlite store beside the run's folder, absolute; raises `BenchError` for a path no URI holds."""
    path = run.resolve().parent / "mlflow.db"
    if any(character in str(path) for character in "?#"):
        raise BenchError(f"{path.parent}: a store's path cannot hold ? or #; rename the folder")
    return f"sqlite:///{path}"


def checked_uri(run: Path, uri: str | None) -> str:
    """`uri` or the default, a sqlite path made absolute; raises `BenchError` for what is no store."""
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
    """The address without user name and password, as notes and messages hold it."""
    scheme, mark, rest = uri.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}"


def experiment_name(run: Path) -> str:
    """MLflow's experiment for a run: its folder's name, so that shards of one run meet."""
    return run.resolve().name


def digest(content: bytes) -> str:
    """SHA-256 of a record file's bytes: what the notes and the store's tags tell versions apart by."""
    return hashlib.sha256(content).hexdigest()


def read_note(run: Path, cell_id: str, uri: str) -> Note | None:
    """What is noted of this record at this store; a damaged note counts as none, the store is asked."""
    try:
        return Note(**json.loads(_note_path(run, cell_id).read_text("utf-8"))[shown(uri)])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write_note(run: Path, cell_id: str, uri: str, note: Note) -> None:
    """Note it, keeping what is noted of other stores."""
    path = _note_path(run, cell_id)
    try:
        notes = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        notes = {}
    notes = notes if isinstance(notes, dict) else {}
    # Not flushed to the disk, which waits milliseconds: a note that is lost costs a search of the store.
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps({**notes, shown(uri): asdict(note)}, indent=1) + "\n", "utf-8")
    part.replace(path)


def unsynced(run: Path, uri: str) -> int:
    """How many of a run's records this store has not, by the notes alone."""
    notes = ((path, read_note(run, path.stem, uri)) for path in (run / "records").glob("*.json"))
    return sum(note is None or note.sha256 != digest(path.read_bytes()) for path, note in notes)


def beat(run: Path) -> None:
    """Show whoever waits for an upload of this run that it goes on."""
    with suppress(OSError):
        os.utime(run / "synced")


def heartbeat(run: Path) -> int:
    """Changes with every beat and every note."""
    try:
        return (run / "synced").stat().st_mtime_ns
    except OSError:
        return 0


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock between processes; it goes with the process, however that ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _note_path(run: Path, cell_id: str) -> Path:
    return run / "synced" / f"{cell_id}.json"
