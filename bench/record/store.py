"""Records: one JSON file per finished cell, written atomically, after the arrays it names.

    RUN/records/<cell id>.json          cell, source, summary, victims, environment, cost
    RUN/arrays/<sha256>.npz             truth, reconstruction, trail: float32, named by content
    RUN/kept/<cell id>.<n>.json         records of an older source, kept aside

Records are the truth; MLflow, the leaderboard and the gate are views of them.
"""

import hashlib
import io
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from bench.cell import AnyCell, Cell
from bench.errors import MALFORMED, DataError, RecordError, StorageError
from bench.record.files import read_plain, write_atomically
from bench.record.npz import read_npz
from bench.sanitize import first_error, first_line, sanitize

SCHEMA = 1
UNPACKED = 2**30  # bytes at most of one cell's arrays
Status = Literal["done", "n/a", "crashed"]
Arrays = Mapping[str, NDArray[Any]]
_CELL: TypeAdapter[AnyCell] = TypeAdapter(Cell)
_KINDS = {
    "status": str, "cell": dict, "source": dict, "summary": dict, "victims": list, "environment": dict,
    "cost": dict, "reason": str | None,
}  # fmt: skip
_HASH = re.compile("[0-9a-f]{1,64}")
_KEYS = ("schema", "status", "id", "cell", "source", "summary", "victims", "environment", "cost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is known of one cell after it ran; documented field by field in docs/RECORDS.md.

    `victims` holds one entry per reading (attack cells) or is empty; `arrays` the content hash of
    the arrays file, or None; `reason` why a cell is n/a or crashed.
    """

    id: str
    status: Status
    cell: dict[str, Any]
    source: dict[str, Any]
    summary: dict[str, Any]
    victims: list[dict[str, Any]]
    environment: dict[str, Any]
    cost: dict[str, Any]
    arrays: str | None = None
    reason: str | None = None
    schema: int = SCHEMA

    def json(self) -> str:
        """The file's text: one line a top-level key would be unreadable, so indented; no NaN."""
        return json.dumps(asdict(self), indent=1, sort_keys=True, allow_nan=False) + "\n"


def write_arrays(run: Path, arrays: Arrays) -> str:
    """Store arrays (floats as float32) under their content hash; returns the hash."""
    stored = {
        name: np.ascontiguousarray(a, np.float32 if np.asarray(a).dtype.kind == "f" else None)
        for name, a in sorted(arrays.items())
    }
    sha256 = arrays_hash(stored)
    path = run / "arrays" / f"{sha256}.npz"
    if not _intact(path, sha256):
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **stored)
        write_atomically(path, buffer.getvalue())
    return sha256


def _intact(path: Path, sha256: str) -> bool:
    """Whether these arrays are there already, and still what their name says."""
    try:
        return path.is_file() and arrays_hash(read_npz(path, limit=UNPACKED)) == sha256
    except DataError:
        return False


def is_private(record: Record) -> bool:
    """Whether the record's data are marked private, so that its pictures stay on this disk."""
    return bool(record.summary.get("private") or record.environment.get("private"))


def arrays_hash(arrays: Arrays) -> str:
    """The hash that names these arrays: over names, types, shapes and contents, by name."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name}{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def read_arrays(run: Path, sha256: str) -> dict[str, NDArray[Any]]:
    """The arrays of that content hash; raises `RecordError` where they are missing or damaged."""
    path = run / "arrays" / f"{sha256}.npz"
    try:
        return read_npz(path, limit=UNPACKED)
    except DataError as error:
        raise RecordError(f"{error}; run the cell again") from None


def record_path(run: Path, cell_id: str) -> Path:
    return run / "records" / f"{cell_id}.json"


def write(run: Path, record: Record) -> Path:
    """Write the record, moving an older one of another source to `kept/`.

    Raises `RecordError` for a record that JSON cannot hold, `StorageError` where the folder does not take it."""
    path = record_path(run, record.id)
    try:
        content = record.json().encode()
    except MALFORMED as error:
        raise RecordError(f"{path}: what is to be recorded is no JSON ({error})") from None
    if path.exists() and _source(path) != record.source:
        set_aside(run, path)
    write_atomically(path, content)
    return path


def set_aside(run: Path, path: Path) -> None:
    """Move a record that gives way to another to `kept/`; raises `StorageError` where that cannot be."""
    kept = run / "kept"
    try:
        kept.mkdir(exist_ok=True)
        places = (kept / f"{path.stem}.{number}.json" for number in count())
        os.replace(path, next(place for place in places if not place.exists()))
    except OSError as error:
        raise StorageError(f"{kept}: cannot be written ({error.strerror}); see who owns {run}") from None


def _source(path: Path) -> dict[str, Any] | None:
    """The source of the record there; None for one that this version cannot read, which is kept aside too."""
    try:
        return read(path).source
    except RecordError:
        return None


def read(path: Path) -> Record:
    """One record; raises `RecordError` with the file and the remedy."""
    try:
        text = read_plain(path).decode()
    except FileNotFoundError:
        raise RecordError(f"{path}: no such record") from None
    except OSError as error:
        raise RecordError(f"{path}: not a record ({error.strerror}); delete it and run again") from None
    except ValueError as error:
        raise RecordError(f"{path}: not a record ({error}); delete it and run again") from None
    return parse(text, str(path))


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def parse(text: str, path: str) -> Record:
    """The record that a file's text holds; raises `RecordError` that names `path`."""
    try:
        content = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}: not a record ({error}); delete it and run again") from None
    if not isinstance(content, dict) or any(key not in content for key in _KEYS):
        raise RecordError(f"{path}: not a record: it needs {', '.join(_KEYS)}")
    for key, kind in _KINDS.items():
        if not isinstance(content.get(key), kind):
            raise RecordError(f"{path}: not a record: its {key} has another type; delete it and run again")
    if content["schema"] != SCHEMA:
        raise RecordError(
            f"{path}: schema {content['schema']}, this bench reads {SCHEMA}; see README, Upgrading"
        )
    unknown = set(content) - set(Record.__dataclass_fields__)
    if unknown:
        raise RecordError(f"{path}: unknown fields {', '.join(sorted(unknown))}")
    arrays = content.get("arrays")
    for named in (content["id"], *([] if arrays is None else [arrays])):  # they name files
        if not (isinstance(named, str) and _HASH.fullmatch(named)):
            raise RecordError(f"{path}: {sanitize(repr(named), 80)} is no content hash; run the cell again")
    return Record(**content)


def cell_of(record: Record) -> AnyCell:
    """The record's cell, checked; raises `RecordError` where it is none or does not have the record's id."""
    try:
        cell = _CELL.validate_json(json.dumps(record.cell))
    except ValidationError as error:
        raise RecordError(f"its cell is not valid: {first_error(error)}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise RecordError(f"its cell is not valid: {first_line(error)}") from None
    if cell.id != record.id:
        raise RecordError("its id is not the hash of its cell; it was altered")
    return cell


def cell_from(text: str) -> AnyCell:
    """A cell from its JSON, as bench wrote it; raises `ValueError` for another text."""
    return _CELL.validate_json(text)


def records(run: Path) -> Iterator[Record]:
    """Every record of a run, in the order of their ids."""
    for path in sorted((run / "records").glob("*.json")):
        yield read(path)


def find(run: Path, prefix: str) -> Record:
    """The one record whose cell id starts with `prefix`; raises `RecordError` for none or several."""
    matches = sorted((run / "records").glob(f"{prefix}*.json")) if prefix.isalnum() else []
    if len(matches) != 1:
        count = "no record" if not matches else f"{len(matches)} records"
        raise RecordError(f"{run}: {count} with an id that starts with {prefix!r}; `bench show` lists ids")
    return read(matches[0])
