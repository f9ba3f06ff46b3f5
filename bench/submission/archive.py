"""The file format of submissions: a plain zip with reproducible bytes, read as an untrusted file.

    manifest.json               list of the files (`bench.submission.manifest`)
    records/<cell id>.json      byte for byte as in the run folder
    arrays/<sha256>.npz         the same, for examples which may be published

No other file is allowed.  The zip has no gap between files, so an unpacked submission shows every byte to a reviewer.
"""

import io
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.errors import BenchError, RecordError
from bench.sanitize import first_line, sanitize

MANIFEST = "manifest.json"
_NAME = re.compile(r"manifest\.json|records/[0-9a-f]{64}\.json|arrays/[0-9a-f]{64}\.npz")
_HEADER, _LISTED = 30, 46  # bytes before an entry's name: in its own header, and in the directory
_END = struct.Struct("<4s4H2LH")  # the end record after the directory
_LONGEST = 256  # most bytes of an entry's name and extras in the directory
_UNKNOWN = 2**19  # most bytes of a directory without a count
_STEP = 2**20
_REFUSED_FLAGS = 0x1 | 0x8 | 0x20 | 0x40 | 0x2000  # encrypted, length after the content, patched
_DAMAGE = (
    OSError,
    ValueError,
    EOFError,
    KeyError,
    IndexError,
    RuntimeError,
    NotImplementedError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on the sizes of a submission file from a stranger, in bytes, against files that fill memory or disk."""

    file: int = 2**32 - 2**20
    """Size of the submission file; a zip without zip64 cannot be larger."""
    directory: int = 2**24
    """Size of the zip's directory, its own list of the files inside."""
    entries: int = 65_000
    """Number of files in the zip."""
    manifest: int = 2**24
    """Unpacked size of the manifest."""
    record: int = 2**23
    """Unpacked size of a record."""
    records: int = 2**30
    """Unpacked size of all records together."""
    array: int = 2**28
    """Unpacked size of an array file."""
    unpacked: int = 6 * 2**30
    """Unpacked size of all files together."""

    def of(self, name: str) -> int:
        """Return the largest unpacked size in bytes of the file `name` in a submission: a record, an array file or the
        manifest."""
        kind = name.partition("/")[0]
        return {"records": self.record, "arrays": self.array}.get(kind, self.manifest)


LIMITS = Limits()


class ArchiveFault(RecordError):
    """Error for a file that is not a valid submission; its text is a single line without the file's name."""


class Archive:
    """An open submission file (a zip with records and arrays): `names` lists the files inside, and `read` returns a
    file's content."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self.names = tuple(sorted(archive.namelist()))

    def read(self, name: str) -> bytes:
        """Return the content of the file `name` in the submission; raises `ArchiveFault` for damaged content or
        length."""
        content = bytearray()
        try:
            with self._archive.open(name) as file:
                # In steps: a single read would unpack everything, whatever the declared length.
                while step := file.read(_STEP):
                    content += step
        except _DAMAGE as error:
            raise ArchiveFault(f"{name}: damaged ({first_line(error)}); get the file again") from None
        if len(content) != self._archive.getinfo(name).file_size:
            raise ArchiveFault(f"{name}: not as long as the file says; get the file again")
        return bytes(content)


class _Capped(io.BufferedReader):
    """A file that refuses reads above `most` bytes: `zipfile` reads a zip directory of any size at once."""

    most = 0

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size > self.most:
            raise ArchiveFault(f"a directory of {size} bytes, at most {self.most} are read")
        return super().read(size)


@contextmanager
def opened(path: Path, limits: Limits = LIMITS) -> Iterator[Archive]:
    """Open the submission file at `path` inside a `with` statement; the form of the zip and its declared sizes are
    checked first, against `limits`. Raises `RecordError` for a missing or unreadable file, and `ArchiveFault` for an
    invalid submission."""
    if not path.is_file():
        raise RecordError(f"{path}: no such file; give a file of `bench leaderboard export`")
    try:
        file = _Capped(io.FileIO(path))
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror}); see its permissions") from None
    with file:
        file.most = limits.directory
        size = file.seek(0, os.SEEK_END)
        if size > limits.file:
            raise ArchiveFault(f"{size} bytes, at most {limits.file} are read; export fewer defenses")
        _check_count(file, size, limits)
        try:
            archive = zipfile.ZipFile(file)
        except _DAMAGE as error:
            raise ArchiveFault(f"no zip, or a damaged one ({first_line(error)}); get the file again") from None
        with archive:
            _check_entries(archive.infolist(), limits)
            _check_places(archive.infolist(), archive.start_dir, file)
            yield Archive(archive)


def _check_count(file: _Capped, size: int, limits: Limits) -> None:
    """Raise `ArchiveFault` if the zip `file` of `size` bytes has too many entries by its end record, or a directory too
    long for them: `zipfile` takes a minute for a directory of 16 MiB."""
    file.seek(max(0, size - _END.size))
    end = file.read(_END.size)
    signature, _, _, _, count, directory, _, _ = _END.unpack(end) if len(end) == _END.size else (b"",) + (0,) * 7
    if signature != b"PK\x05\x06":
        file.most = _UNKNOWN
    elif count > limits.entries or directory > count * (_LISTED + _LONGEST):
        raise ArchiveFault(f"{count} entries in a directory of {directory} bytes, at most {limits.entries} are read")


def write(path: Path, members: Mapping[str, Callable[[], bytes]]) -> None:
    """Write a new submission file: a zip with `members`, file name → function that returns the content. Equal contents
    give equal bytes. Raises `BenchError` if a plain zip cannot hold the files."""
    try:
        with zipfile.ZipFile(path, "w", allowZip64=False) as archive:
            for name, content in sorted(members.items()):
                info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
                info.create_system, info.external_attr = 3, (stat.S_IFREG | 0o644) << 16
                packed = name.startswith("arrays/")  # an .npz is compressed already
                info.compress_type = zipfile.ZIP_STORED if packed else zipfile.ZIP_DEFLATED
                archive.writestr(info, content(), compresslevel=None if packed else 9)
    except zipfile.LargeZipFile:
        raise BenchError(
            f"{path}: more than 4 GiB or 65 535 entries; leave arrays out, or name fewer defenses"
        ) from None


def _check_entries(infos: list[zipfile.ZipInfo], limits: Limits) -> None:
    """Raise `ArchiveFault` for a file in the zip that `write` cannot have written, and for too large sizes."""
    if len(infos) > limits.entries:
        raise ArchiveFault(f"{len(infos)} entries, at most {limits.entries} are read")
    names: set[str] = set()
    for info in infos:
        name, shown = info.filename, sanitize(repr(info.orig_filename), 100)
        kind = stat.S_IFMT(info.external_attr >> 16)
        packed = info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        if not _NAME.fullmatch(name) or name != info.orig_filename:
            raise ArchiveFault(f"{shown}: no name that a submission has; get it from who wrote it")
        if name in names:
            raise ArchiveFault(f"{shown}: is in it twice; get it from who wrote it")
        if kind not in (0, stat.S_IFREG) or info.external_attr & 0x10:
            raise ArchiveFault(f"{shown}: no plain file but a link, folder or device")
        if not packed or info.flag_bits & _REFUSED_FLAGS or info.extra or info.comment:
            raise ArchiveFault(f"{shown}: encrypted, or packed in a way that is not read")
        if info.file_size > limits.of(name):
            raise ArchiveFault(f"{shown}: {info.file_size} bytes unpacked, at most {limits.of(name)} are read")
        names.add(name)
    if MANIFEST not in names:
        raise ArchiveFault(f"no {MANIFEST} in it; write it with `bench leaderboard export`")
    total = sum(info.file_size for info in infos)
    texts = sum(info.file_size for info in infos if info.filename.startswith("records/"))
    if total > limits.unpacked or texts > limits.records:
        raise ArchiveFault(f"{total} bytes unpacked, {texts} of records: more than are read")


def _check_places(infos: list[zipfile.ZipInfo], directory: int, file: io.BufferedReader) -> None:
    """Raise `ArchiveFault` if a byte of the zip `file` belongs to no file inside, or to two. `infos` describe the files
    inside, and `directory` is the position in bytes of the zip's own list of these files."""
    end = 0
    for info in sorted(infos, key=lambda info: info.header_offset):
        if info.header_offset != end:
            raise ArchiveFault("its entries overlap or have something between them; get the file again")
        end += _HEADER + len(info.filename) + info.compress_size
    length = sum(_LISTED + len(info.filename) for info in infos)
    file.seek(directory + length)
    last = _END.pack(b"PK\x05\x06", 0, 0, len(infos), len(infos), length, directory, 0)
    if end != directory or file.read(_END.size + 1) != last:
        raise ArchiveFault("it has something around its entries, or several parts; get the file again")
