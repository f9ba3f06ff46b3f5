"""Download a data set's files from the first mirror that answers; a file is kept if its checksum agrees."""

import logging
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pooch
import requests

from bench.datasets.files import Remote
from bench.errors import DataError

_LIMIT = 2**30  # bytes; the largest file is 0.25 GB
Progress = Callable[[int, int], None]  # bytes so far, bytes in all (0 where the mirror does not say)


class _Bar:
    """Progress bar in the form that pooch needs; passes byte counts on, and stops a download beyond the size limit."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._done = 0
        self.total = 0

    def update(self, count: int) -> None:
        self._done += count
        if self._done > _LIMIT:
            raise ValueError(f"it sent more than {_LIMIT} bytes")
        self._progress(self._done, self.total)

    def reset(self) -> None:
        """Set the byte count to 0; pooch calls this method at the end, before it adds the whole size again."""
        self._done = 0

    def close(self) -> None:
        """Do nothing: pooch calls this method, but the progress bar belongs to the caller."""


def fetch(remote: Remote, root: Path, *, mirror: str | None, progress: Progress, timeout: float = 30) -> Path:
    """Download the file `remote` below the folder `root`, unless an intact copy exists. Return its path, or the folder
    of the unpacked archive.

    - `mirror`: address in place of the published addresses (the file name is appended); None keeps the published
      addresses.
    - `progress`: function called with the bytes so far and the total.
    - `timeout`: limit for an answer, in seconds.

    A download has a temporary name until its checksum agrees. Raises `DataError` with each mirror's failure and manual
    instructions."""
    urls = (f"{mirror.rstrip('/')}/{remote.name}",) if mirror else remote.urls
    for url in urls:
        if urlsplit(url).scheme not in ("http", "https"):
            raise DataError(f"mirror must be an http or https address, got {url!r}")
    target = root / remote.place / remote.name
    reasons = []
    for url in urls:
        try:
            with _quiet():
                downloader = pooch.HTTPDownloader(progressbar=_Bar(progress), timeout=timeout)
                pooch.retrieve(url, remote.hash, target.name, target.parent, downloader=downloader)
        except requests.RequestException as error:
            reasons.append(f"{url}: {_short(error)}")
        except ValueError as error:
            altered = "does not match" in str(error)
            reasons.append(f"{url}: {'truncated or altered, checksum differs' if altered else error}")
        except OSError as error:
            raise DataError(f"{target.parent}: cannot be written ({error.strerror}); give --data-dir") from None
        else:
            return _unpacked(target, remote) if remote.unpacks else target
    raise DataError(
        f"{remote.name} could not be had and nothing was kept ({'; '.join(reasons)}); "
        f"give --mirror, or put the file ({remote.hash}) at {target} by hand and run this again"
    )


def _short(error: requests.RequestException) -> str:
    if error.response is not None:
        return f"status {error.response.status_code}"
    return "no answer in time" if isinstance(error, requests.Timeout) else "no connection"


def _unpacked(archive: Path, remote: Remote) -> Path:
    assert remote.unpacks is not None
    folder = archive.parent / remote.unpacks
    if folder.exists():
        return folder
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".unpacking-") as temporary:
        try:
            _extract(archive, Path(temporary))
            (Path(temporary) / remote.unpacks).rename(folder)
        except (tarfile.TarError, OSError) as error:
            raise DataError(f"{archive}: cannot be unpacked ({error}); free some space, or give --data-dir") from None
    return folder


def _extract(archive: Path, folder: Path) -> None:
    """Extract plain files of `archive` below `folder`; the filter in `tarfile` exists only since Python 3.11.4."""
    with tarfile.open(archive) as tar:
        for member in tar:
            target = (folder / member.name).resolve()
            if not target.is_relative_to(folder.resolve()) or not (member.isdir() or member.isfile()):
                raise tarfile.TarError(f"{member.name} is no plain file inside it")
            source = tar.extractfile(member)
            if source is not None:  # None: a folder
                target.parent.mkdir(parents=True, exist_ok=True)
                with source, target.open("wb") as copy:
                    shutil.copyfileobj(source, copy)


@contextmanager
def _quiet() -> Iterator[None]:
    logger: Any = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
