"""File access: only plain files are read, and every write is atomic."""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.errors import StorageError

PART = ".part"  # how the names of files end that are being written


def require_plain(path: Path) -> os.stat_result:
    """Check that `path` is a plain file, and return its status; raises `OSError` for a missing file, a folder, a pipe
    or a device. A pipe is not opened, because opening would wait for a writer."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "no plain file", str(path))
    return status


def read_plain(path: Path, *, limit: int | None = None) -> bytes:
    """Return a plain file's content. Raises `OSError` for a missing file, a folder, a pipe or a device, and for more
    than `limit` bytes."""
    size = require_plain(path).st_size
    if limit is not None and size > limit:
        raise OSError(errno.EFBIG, f"more than {limit} bytes", str(path))
    return path.read_bytes()


@contextmanager
def new_file(path: Path, *, replace: bool = True, flush: bool = True) -> Iterator[Path]:
    """Give a temporary path for writing the file `path` inside a `with` statement. At its end the file is renamed to
    `path`, or removed after an exception.

    - `replace`: False keeps an existing file and raises.
    - `flush`: False is faster, but a machine failure may lose the content.

    Raises `StorageError` for a full disk, a read-only folder or an existing file."""
    part = path.with_name(f".{secrets.token_hex(8)}{PART}")
    try:
        if not replace and path.exists():
            raise _taken(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Not `tempfile`: its files are for their owner alone, and a run folder is read by others.
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        yield part
        if flush:
            with part.open("rb") as file:
                os.fsync(file.fileno())
        if replace:
            part.replace(path)
        else:
            _link(part, path)
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be written ({error.strerror or error}); make room there, or choose another folder"
        ) from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes, *, flush: bool = True) -> None:
    """Write `content` to the file `path`, completely or not at all. `flush` False is faster, but a machine failure may
    lose the content. Raises `StorageError` for a full disk or a read-only folder."""
    with new_file(path, flush=flush) as part:
        part.write_bytes(content)


def _link(part: Path, path: Path) -> None:
    """Link the finished temporary file `part` to its name; unlike a rename, a link never replaces a file."""
    try:
        os.link(part, path)
    except OSError:  # the name is taken, or a file system without links
        if path.exists():
            raise _taken(path) from None
        part.replace(path)


def _taken(path: Path) -> StorageError:
    return StorageError(f"{path}: is there already; name another file, or delete it")
