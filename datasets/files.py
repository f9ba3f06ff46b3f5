"""A loader's files: search in several folders, reading with a size limit, checks of the content."""

import gzip
import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.errors import DataError, MissingDataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """A file that `bench data fetch` downloads."""

    name: str
    """Name of the file."""
    hash: str
    """Published checksum, `md5:…` or `sha256:…`."""
    urls: tuple[str, ...]
    """Full addresses, in the order of use; a later address is used if an earlier one fails."""
    place: str
    """Folder below the data folder into which the file is written."""
    unpacks: str | None = None
    """Folder below `place` that holds the unpacked archive; None for a plain file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A possible arrangement of a data set's files below a data folder, for the search by `locate`. Each file may be
    plain or end in `.gz`."""

    place: str
    """Folder below the data folder."""
    names: tuple[str, ...]
    """Names of all files."""
    format: str = ""
    """Format of the files, a word that only the data set's loader uses; empty for a single format."""


def locate(folders: Sequence[Path], layouts: Sequence[Layout]) -> tuple[Layout, tuple[Path, ...]]:
    """Search for a data set's files; return a layout and the paths of its files, in the layout's order. The result is
    the first layout of `layouts` (possible arrangements of the files) that is complete, in the first of `folders` with
    a complete layout. Raises `MissingDataError` with the missing files of an incomplete layout, or with all searched
    places."""
    incomplete: list[str] = []
    for folder in folders:
        for layout in layouts:
            files = {name: _either(folder / layout.place / name) for name in layout.names}
            paths = tuple(path for path in files.values() if path is not None)
            if len(paths) == len(layout.names):
                return layout, paths
            if paths:
                missing = ", ".join(name for name, path in files.items() if path is None)
                incomplete.append(f"{folder / layout.place} lacks {missing}")
    if incomplete:
        raise MissingDataError("; ".join(incomplete))
    places = " or ".join(dict.fromkeys(f"{layout.place or '.'}/{layout.names[0]}" for layout in layouts))
    raise MissingDataError(f"not there: looked for {places} below {', '.join(map(str, folders)) or 'no folder'}")


def _either(path: Path) -> Path | None:
    candidates = (path, path.with_name(path.name + ".gz"))
    return next((candidate for candidate in candidates if candidate.exists()), None)


def read(path: Path, *, limit: int) -> bytes:
    """Return the content of the file `path`, decompressed if necessary, at most `limit` bytes. Raises `DataError` for
    damaged or longer files."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content: bytes = file.read(limit + 1)
    except (EOFError, zlib.error, OSError) as error:
        raise DataError(f"{path}: truncated or altered ({error})") from None
    if len(content) > limit:
        raise DataError(f"{path}: altered: it holds more than the {limit} bytes that the format allows")
    return content


def md5(content: bytes) -> str:
    """Return the MD5 of `content`, the checksum published for classic data sets; it does not protect against
    attackers."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def check_md5(path: Path, content: bytes, expected: str) -> None:
    """Raise `DataError` if the MD5 of `content`, read from the file `path`, is not `expected`."""
    actual = md5(content)
    if actual != expected:
        raise DataError(f"{path}: truncated or altered: md5 {actual}, published is {expected}")


def check_balance(path: Path, labels: NDArray[np.int64], classes: int) -> None:
    """Check the labels of a data set with equally frequent classes. Raises `DataError` unless all `classes` classes
    have equally many examples in `labels`; `path` is the file in the message."""
    counts = np.bincount(labels, minlength=classes)
    if len(counts) != classes or len(set(counts.tolist())) != 1:
        raise DataError(
            f"{path}: altered: expected {len(labels) // classes} examples in each of {classes} classes, "
            f"got {counts.min()} to {counts.max()} in {len(counts)}"
        )


def subset(there: tuple[int, int], whole: tuple[int, int], unit: str = "pictures") -> str | None:
    """Describe an incomplete data set, such as `10000 of 60000 training, 1000 of 10000 test pictures`, for reports;
    None if complete. Raises `DataError` for counts larger than the complete data set's.

    - `there`, `whole`: numbers of present and of all items, each (training, test).
    - `unit`: name of the items in the text."""
    if any(a > b for a, b in zip(there, whole, strict=True)):
        raise DataError(f"altered: {there[0]} training and {there[1]} test {unit}, the whole has {whole}")
    if there == whole:
        return None
    return f"{there[0]} of {whole[0]} training, {there[1]} of {whole[1]} test {unit}"
