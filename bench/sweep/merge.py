"""Merging of run folders: shards of a matrix, or runs of a matrix on several machines.

Every record is checked first: its id must be the cell's hash, and its arrays and checkpoints must exist with the stated
hashes.  A replaced record moves to `kept/`, as after a repeated cell."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.errors import BenchError, DataError, RecordError
from bench.record import request
from bench.record import store as records
from bench.record.checkpoints import checkpoint_path
from bench.record.equality import differences
from bench.record.files import read_plain, write_atomically
from bench.record.npz import read_npz
from bench.record.schema import Record
from bench.record.store import UNPACKED, arrays_hash
from bench.sanitize import LONG, sanitize
from bench.sweep.bundle import unpack

_LARGEST = 2**23  # bytes in a record
_RANK = {"done": 2, "n/a": 1, "crashed": 0}  # the higher status replaces the lower
_BESIDE = (request.FILE, "published.json")


@dataclass(slots=True)
class MergeResult:
    """Result of merging run folders: numbers of new, better and equal records, and lines about records that differ or
    were refused."""

    new: int = 0
    """Number of records that the folder lacked."""
    better: int = 0
    """Number of records that replaced a record of lower status, such as crashed."""
    same: int = 0
    """Number of records that the folder already had."""
    differs: list[str] = field(default_factory=list)
    """A line for each record that differs from the folder's record."""
    refused: list[str] = field(default_factory=list)
    """A line for each record that failed the check."""


def merge(into: Path, sources: Sequence[Path]) -> MergeResult:
    """Merge the records of the run folders `sources` into the run folder `into`, which the caller has locked; return
    counts.

    Sources stay unchanged, and may belong to active runs. Raises `RecordError` for a source without a run, `BenchError`
    if `into` is a source, and `StorageError` for a failed write."""
    for source in sources:
        if not (source / "records").is_dir():
            raise RecordError(f"{source}: no folder records/ there; give the folders of runs")
        if source.resolve() == into.resolve():
            raise BenchError(f"{source}: it cannot be merged into itself; leave it out")
    merged = MergeResult()
    for source in sources:
        for path in sorted((source / "records").glob("*.json")):
            try:
                _bring(path, source, into, merged)
            except (RecordError, DataError, OSError, UnicodeDecodeError) as error:
                merged.refused.append(sanitize(f"{path}: {str(error).removeprefix(f'{path}: ')}", LONG))
        _beside(source, into, merged)
    return merged


def _bring(path: Path, source: Path, into: Path, merged: MergeResult) -> None:
    content = _read(path, _LARGEST)
    record = records.parse(content.decode(), str(path), foreign=True)
    if path.name != f"{record.id}.json":
        raise RecordError("calls itself by another id than its file")
    there = records.record_path(into, record.id)
    old = records.read(there) if there.exists() else None
    if old is not None and _RANK[record.status] <= _RANK[old.status]:
        if difference := _difference(record, old):
            line = f"{record.id[:8]} in {source}: {difference}; what was there stays"
            merged.differs.append(sanitize(line, LONG))
        else:
            merged.same += 1
        return
    unpack(into, _files(record, source))  # all checked before anything is written
    if old is None:
        merged.new += 1
    else:
        records.set_aside(into, there)
        merged.better += 1
    write_atomically(there, content)


def _difference(record: Record, old: Record) -> str | None:
    if record.provenance != old.provenance:
        return "answered by other code"
    if record.status != old.status:
        return f"{record.status}, not {old.status}"
    return "other figures from the same code" if differences(old, record) else None


def _files(record: Record, source: Path) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    if record.arrays is not None:
        path = source / "arrays" / f"{record.arrays}.npz"
        files[path.relative_to(source).as_posix()] = content = _read(path)
        if arrays_hash(read_npz(Path("its arrays"), limit=UNPACKED, content=content)) != record.arrays:
            raise RecordError("its arrays are not those that it names")
    for round_, sha256 in record.training.checkpoints.items() if record.training else ():
        path = checkpoint_path(source, record.id, round_)
        files[path.relative_to(source).as_posix()] = content = _read(path)
        if hashlib.sha256(content).hexdigest() != sha256:
            raise RecordError(f"its checkpoint of round {round_} is not the one that it names")
    return files


def _read(path: Path, limit: int = UNPACKED) -> bytes:
    try:
        return read_plain(path, limit=limit)
    except OSError as error:
        raise RecordError(f"{path.name} cannot be read ({error.strerror})") from None


def _beside(source: Path, into: Path, merged: MergeResult) -> None:
    """Copy the files about the matrix from a source folder to `into`; existing files stay. An unranked suite file
    replaces a ranked suite file."""
    for path in sorted((*(source / name for name in _BESIDE), *source.glob("suite-*.json"))):
        if not path.is_file() or path.stat().st_size > _LARGEST:
            continue
        content, there = path.read_bytes(), into / path.name
        if not there.exists():
            write_atomically(there, content)
        elif there.read_bytes() != content:
            merged.differs.append(sanitize(f"{path}: differs from {there}; what was there stays", LONG))
            if path.name.startswith("suite-") and not _ranked(content):
                write_atomically(there, content)


def _ranked(content: bytes) -> bool:
    try:
        return bool(json.loads(content).get("ranked"))
    except (ValueError, AttributeError, RecursionError):
        return False
