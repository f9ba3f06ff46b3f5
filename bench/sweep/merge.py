"""Several run folders → one: shards of a matrix, or the same matrix from several machines.

Every record is checked before it counts, as it may come from anywhere: its cell has its id, its arrays and its
checkpoints are there and of the hash that it names.  Nothing that is there is lost: what gives way to a better
record is kept aside, as when a cell runs again.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.cell import AnyCell, TrainingCell
from bench.errors import MALFORMED, BenchError, DataError, RecordError, WeightsError
from bench.record import store as records
from bench.record.checkpoints import checkpoint_path
from bench.record.files import read_plain, write_atomically
from bench.record.npz import read_npz
from bench.record.store import UNPACKED, Record, arrays_hash
from bench.sanitize import LONG, sanitize
from bench.sweep.bundle import unpack

_LARGEST = 2**23  # bytes of one record
_WORD = {"done": 2, "n/a": 1, "crashed": 0}  # which of two records says more
_BESIDE = ("asked.json", "published.json")


@dataclass(slots=True)
class Merged:
    """What a merge did: `new` records, `better` ones in place of those that were there, `same` ones, and one line
    each for what `differs` and for what was `refused`."""

    new: int = 0
    better: int = 0
    same: int = 0
    differs: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def merge(into: Path, sources: Sequence[Path]) -> Merged:
    """Bring the records of `sources` into the run folder `into`, which the caller holds; the sources stay as they
    are, and may be under way.

    Raises `RecordError` for a source that is no run folder, `StorageError` where `into` does not take a file.
    """
    for source in sources:
        if not (source / "records").is_dir():
            raise RecordError(f"{source}: no folder records/ there; give the folders of runs")
        if source.resolve() == into.resolve():
            raise BenchError(f"{source}: it cannot be merged into itself; leave it out")
    merged = Merged()
    for source in sources:
        for path in sorted((source / "records").glob("*.json")):
            try:
                _bring(path, source, into, merged)
            except (RecordError, DataError, WeightsError, OSError, *MALFORMED) as error:
                merged.refused.append(sanitize(f"{path}: {str(error).removeprefix(f'{path}: ')}", LONG))
        _beside(source, into, merged)
    return merged


def _bring(path: Path, source: Path, into: Path, merged: Merged) -> None:
    record = records.parse(_read(path, _LARGEST).decode(), str(path))
    cell = records.cell_of(record)
    if path.name != f"{record.id}.json":
        raise RecordError("calls itself by another id than its file")
    if record.status not in _WORD:
        raise RecordError(f"has the status {record.status!r}; it must be {', '.join(_WORD)}")
    there = records.record_path(into, record.id)
    old = records.read(there) if there.exists() else None
    if old is not None and not _better(record, old):
        if _answer(record) == _answer(old):
            merged.same += 1
        else:
            merged.differs.append(
                sanitize(f"{record.id[:8]} in {source}: {_how(record, old)}; what was there stays", LONG)
            )
        return
    unpack(into, _files(record, cell, source))  # all checked before anything is written
    if old is None:
        merged.new += 1
    else:
        records.set_aside(into, there)
        merged.better += 1
    records.write(into, record)


def _better(record: Record, old: Record) -> bool:
    return _WORD[record.status] > _WORD.get(old.status, -1)


def _answer(record: Record) -> tuple[Any, ...]:
    """What two answers of the same code to the same question agree in; times and machines are not."""
    return record.status, record.summary, record.victims, record.source


def _how(record: Record, old: Record) -> str:
    if record.source != old.source:
        return "answered by other code"
    return (
        "other figures from the same code"
        if record.status == old.status
        else f"{record.status}, not {old.status}"
    )


def _files(record: Record, cell: AnyCell, source: Path) -> dict[str, bytes]:
    """The files that a record names, each checked, by their paths in a run folder."""
    files: dict[str, bytes] = {}
    if record.arrays is not None:
        path = source / "arrays" / f"{record.arrays}.npz"
        files[path.relative_to(source).as_posix()] = content = _read(path)
        if arrays_hash(read_npz(Path("its arrays"), limit=UNPACKED, content=content)) != record.arrays:
            raise RecordError("its arrays are not those that it names")
    if isinstance(cell, TrainingCell) and record.status == "done":
        named = record.summary.get("checkpoints")
        if not isinstance(named, dict):
            raise RecordError("a training that names no checkpoints")
        for round_, sha256 in named.items():
            number = int(round_) if isinstance(round_, str) and round_.isdecimal() else -1
            path = checkpoint_path(source, cell.id, number)
            files[path.relative_to(source).as_posix()] = content = _read(path)
            if hashlib.sha256(content).hexdigest() != sha256:
                raise RecordError(f"its checkpoint of round {number} is not the one that it names")
    return files


def _read(path: Path, limit: int = UNPACKED) -> bytes:
    try:
        return read_plain(path, limit=limit)
    except OSError as error:
        raise RecordError(f"{path.name} cannot be read ({error.strerror})") from None


def _beside(source: Path, into: Path, merged: Merged) -> None:
    """What a run says of its question; where two differ the first stays, and a suite that one of them changed is
    unranked."""
    for path in sorted((*(source / name for name in _BESIDE), *source.glob("suite-*.json"))):
        if not path.is_file() or path.stat().st_size > _LARGEST:
            continue
        content, there = path.read_bytes(), into / path.name
        if not there.exists():
            write_atomically(there, content)
        elif there.read_bytes() != content:
            merged.differs.append(
                sanitize(f"{path}: asks otherwise than {there}; what was there stays", LONG)
            )
            if path.name.startswith("suite-") and not _ranked(content):
                write_atomically(there, content)


def _ranked(content: bytes) -> bool:
    try:
        return bool(json.loads(content).get("ranked"))
    except (ValueError, AttributeError, RecursionError):
        return False
