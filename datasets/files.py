"""The files a loader reads: found below several folders, read within bounds, checked by content."""

import gzip
import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.errors import DataError


class MissingDataError(DataError):
    """Files that are not there, rather than damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """A file to download: its published hash (`md5:…`, `sha256:…`), full addresses, tried in order.

    `place` is the folder for it below the data folder; `unpacks` the folder, below `place`, that the
    archive makes, or None where the file is used as it is.
    """

    name: str
    hash: str
    urls: tuple[str, ...]
    place: str
    unpacks: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One way in which a data set may lie below a folder: all `names` in `place`, plain or as `.gz`."""

    place: str
    names: tuple[str, ...]
    format: str = ""


def locate(folders: Sequence[Path], layouts: Sequence[Layout]) -> tuple[Layout, tuple[Path, ...]]:
    """The first layout that is complete below the first folder, with its files.

    Raises `MissingDataError` naming the files that an incomplete place lacks, or where it looked.
    """
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
    """The (decompressed) content, at most `limit` bytes; raises `DataError` for damage or more."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content: bytes = file.read(limit + 1)
    except (EOFError, zlib.error, OSError) as error:
        raise DataError(f"{path}: truncated or altered ({error})") from None
    if len(content) > limit:
        raise DataError(f"{path}: altered: it holds more than the {limit} bytes that the format allows")
    return content


def md5(content: bytes) -> str:
    """The checksum under which the classic data sets are published; no protection against an enemy."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def check_md5(path: Path, content: bytes, expected: str) -> None:
    """Raise `DataError` where the content is not the published one."""
    actual = md5(content)
    if actual != expected:
        raise DataError(f"{path}: truncated or altered: md5 {actual}, published is {expected}")


def check_balance(path: Path, labels: NDArray[np.int64], classes: int) -> None:
    """Raise `DataError` where a whole, balanced set does not hold as many examples of each class."""
    counts = np.bincount(labels, minlength=classes)
    if len(counts) != classes or len(set(counts.tolist())) != 1:
        raise DataError(
            f"{path}: altered: expected {len(labels) // classes} examples in each of {classes} classes, "
            f"got {counts.min()} to {counts.max()} in {len(counts)}"
        )


def subset(there: tuple[int, int], whole: tuple[int, int], unit: str = "pictures") -> str | None:
    """What is there, (training, test), in words where it is less than the whole; None where it is whole.

    Raises `DataError` where there is more than the whole.
    """
    if any(a > b for a, b in zip(there, whole, strict=True)):
        raise DataError(f"altered: {there[0]} training and {there[1]} test {unit}, the whole has {whole}")
    if there == whole:
        return None
    return f"{there[0]} of {whole[0]} training, {there[1]} of {whole[1]} test {unit}"
