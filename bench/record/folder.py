"""A run's folder: created and locked by one process, which also removes temporary files of a killed run."""

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter

from bench.errors import BenchError, StorageError
from bench.record.files import PART

_LOCK = ".lock"
_FOLDERS = ("records", "arrays", "weights", "pictures", "hung", "kept", "submissions")


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """The process that holds, or last held, the lock of a run folder; an error message names this process, because only
    one run may write to a folder."""

    __pydantic_config__ = ConfigDict(strict=True, allow_inf_nan=False)
    pid: int
    """Number of the process."""
    host: str
    """Name of the machine."""
    since: float
    """Time of locking, in seconds since 1970."""


_LOCK_HOLDER = TypeAdapter(LockHolder)


@contextmanager
def locked(run: Path) -> Iterator[Path]:
    """Create the run folder, and lock it for a single run inside a `with` statement; the system releases the lock when
    the process ends. Raises `StorageError` for an unwritable folder, and `BenchError` for a folder in use or with links
    to folders outside."""
    try:
        (run / "records").mkdir(parents=True, exist_ok=True)
        descriptor = os.open(run / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        file = os.fdopen(descriptor, "r+b")
    except OSError as error:
        raise StorageError(f"{run}: cannot be written ({error.strerror}); choose another --out") from None
    with file:
        _refuse_links(run)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = lock_holder(run)
            by = f" (process {other.pid} on {other.host})" if other else ""
            raise BenchError(
                f"{run}: a run is under way there{by}; wait for it (`bench status {run}`), or choose another --out"
            ) from None
        except OSError:
            pass  # a file system without locks
        me = LockHolder(pid=os.getpid(), host=socket.gethostname(), since=time.time())
        with suppress(OSError):  # a full disk: nobody can read whose lock it is, but locked it is
            file.truncate(0)
            file.write(json.dumps(asdict(me)).encode())
            file.flush()
        _tidy(run)
        yield run


def is_locked(run: Path) -> bool:
    """Return whether a process uses the run folder `run` now."""
    try:
        with (run / _LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def lock_holder(run: Path) -> LockHolder | None:
    """Return the process that last locked the run folder `run`; None if unknown."""
    try:
        return _LOCK_HOLDER.validate_json((run / _LOCK).read_bytes())
    except (OSError, ValueError):
        return None


def _refuse_links(run: Path) -> None:
    """Raise `BenchError` for links in a folder from another user, because writes must stay inside the folder."""
    for folder in _folders(run):
        if folder.is_symlink():
            raise BenchError(f"{folder}: a link, and a run writes to its own folder alone; put a folder there")


def _folders(run: Path) -> list[Path]:
    return [*(run / name for name in _FOLDERS), *(run / "weights").glob("*")]


def _tidy(run: Path) -> None:
    for path in (path for folder in (run, *_folders(run)) for path in folder.glob(f".*{PART}")):
        path.unlink(missing_ok=True)
    for path in (run / "hung").glob("*.txt"):
        if not path.stat().st_size:
            path.unlink(missing_ok=True)
