"""Storage of records: a JSON file per finished cell, written atomically, after its arrays.

    RUN/records/<cell id>.json          cell, provenance, result, environment, cost
    RUN/arrays/<sha256>.npz             truth, reconstruction, trajectory: float32, named by content
    RUN/kept/<cell id>.<n>.json         records from older code

MLflow, the leaderboard and the gate are views of the records."""

import hashlib
import io
import json
import os
import re
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from bench.cell import AnyCell, Cell
from bench.errors import MALFORMED, DataError, RecordError, StorageError
from bench.record.files import read_plain, write_atomically
from bench.record.npz import read_npz
from bench.record.schema import SCHEMA, Provenance, Record, adapter
from bench.sanitize import first_error, first_line, sanitize

UNPACKED = 2**30  # bytes at most of one cell's arrays
Arrays = Mapping[str, NDArray[Any]]
CELL: TypeAdapter[AnyCell] = TypeAdapter(Cell)
_HASH = re.compile("[0-9a-f]{1,64}")
_AGAIN = "delete it and run again"


def to_json(record: Record) -> str:
    """Return the content of the record's file: indented JSON without NaN. Raises `TypeError` or `ValueError` for values
    that JSON cannot hold, such as NaN or a plug-in's type."""
    try:
        content = adapter().dump_python(record, mode="json", warnings="error")
    except ValueError as error:  # the first line of pydantic's says nothing
        raise ValueError(str(error).splitlines()[-1].strip()) from None
    if record.cell.kind == "attack" and not record.cell.after:
        del content["cell"]["after"]
    return json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n"


def write_arrays(run: Path, arrays: Arrays) -> str:
    """Store `arrays`, name → values (floats as float32), in the run folder `run`, in a file named by their hash; return
    the hash."""
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
    try:
        return path.is_file() and arrays_hash(read_npz(path, limit=UNPACKED)) == sha256
    except DataError:
        return False


def arrays_hash(arrays: Arrays) -> str:
    """Return the hash of `arrays`: over names, types, shapes and contents, sorted by name."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name}{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def read_arrays(run: Path, sha256: str) -> dict[str, NDArray[Any]]:
    """Read the arrays with the content hash `sha256` from the run folder `run`. Raises `RecordError` for missing or
    damaged arrays."""
    path = run / "arrays" / f"{sha256}.npz"
    try:
        return read_npz(path, limit=UNPACKED)
    except DataError as error:
        raise RecordError(f"{error}; run the cell again") from None


def record_path(run: Path, cell_id: str) -> Path:
    """Return the path of the record of a cell (experiment) in the run folder `run`; `cell_id` is the cell's id."""
    return run / "records" / f"{cell_id}.json"


def write(run: Path, record: Record) -> Path:
    """Write a record to the run folder `run` and return its path. An existing record from other code moves to `kept/`.
    Raises `RecordError` for a record that JSON cannot hold, and `StorageError` for an unwritable folder."""
    path = record_path(run, record.id)
    try:
        content = to_json(record).encode()
    except MALFORMED as error:
        raise RecordError(f"{path}: what is to be recorded is no JSON ({error})") from None
    if path.exists() and _provenance(path) != record.provenance:
        set_aside(run, path)
    write_atomically(path, content)
    return path


def set_aside(run: Path, path: Path) -> None:
    """Move the record file at `path` to the folder `kept/` of the run folder `run`, so that its cell (experiment)
    runs again. Raises `StorageError` for an unwritable folder."""
    kept = run / "kept"
    try:
        kept.mkdir(exist_ok=True)
        places = (kept / f"{path.stem}.{number}.json" for number in count())
        os.replace(path, next(place for place in places if not place.exists()))
    except OSError as error:
        raise StorageError(f"{kept}: cannot be written ({error.strerror}); see who owns {run}") from None


def _provenance(path: Path) -> Provenance | None:
    try:
        return read(path).provenance
    except RecordError:
        return None


def read(path: Path, *, foreign: bool = False) -> Record:
    """Read a record file; raises `RecordError` with the file, the field and a remedy. `foreign` True also raises if the
    record's id is not the hash of its cell (experiment)."""
    try:
        text = read_plain(path).decode()
    except FileNotFoundError:
        raise RecordError(f"{path}: no such record") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RecordError(f"{path}: not a record ({reason}); {_AGAIN}") from None
    return parse(text, str(path), foreign=foreign)


def parse(text: str, path: str, remedy: str = _AGAIN, *, foreign: bool = False) -> Record:
    """Parse a record's JSON text. Raises `RecordError` with the file name `path`, the wrong field or schema, and the
    text `remedy`. `foreign` True also raises if the record's id is not the hash of its cell (experiment)."""
    try:
        record = adapter().validate_json(text)
    except ValidationError as error:
        raise RecordError(f"{path}: {_refusal(text, error, remedy)}") from None
    except ValueError as error:  # of a cell that has no canonical JSON
        raise RecordError(f"{path}: not a record ({first_line(error)}); {remedy}") from None
    try:
        if reason := _inconsistent(record):
            raise RecordError(reason)
    except (RecordError, *MALFORMED) as error:
        raise RecordError(f"{path}: not a record: {first_line(error)}; {remedy}") from None
    if foreign and record.id != record.cell.id:
        raise RecordError(f"{path}: its id is not the hash of its cell; it was altered")
    return record


def _refusal(text: str, error: ValidationError, remedy: str) -> str:
    try:
        content = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as reason:
        return f"not a record ({first_line(reason)}); {remedy}"
    schema = content.get("schema") if isinstance(content, dict) else None
    if isinstance(schema, int) and schema != SCHEMA:
        return f"schema {schema}, this bench reads {SCHEMA}; {remedy}"
    return f"not a record: {first_error(error)}; {remedy}"


def _inconsistent(record: Record) -> str | None:
    if record.schema != SCHEMA:
        return f"schema {record.schema}, this bench reads {SCHEMA}"
    if not _HASH.fullmatch(record.id) or not _HASH.fullmatch(record.arrays or "0"):  # they name files
        return f"{sanitize(repr(record.id), 80)} or its arrays is no content hash"
    result = record.result
    if record.status == "done" and (result is None or result.kind != record.cell.kind):
        return f"it is done and has no result of its {record.cell.kind} cell"
    if record.status != "done" and (result is not None or not record.reason):
        return f"it is {record.status}, and has a result or no reason"
    return None


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def records(run: Path) -> Iterator[Record]:
    """Yield the records of the run folder `run` in the order of their ids."""
    for path in sorted((run / "records").glob("*.json")):
        yield read(path)


def readable(run: Path) -> tuple[list[Record], list[str]]:
    """Return the readable records of the run folder `run` in the order of their ids, and an error text for each
    unreadable record."""
    found: list[Record] = []
    faults: list[str] = []
    for path in sorted((run / "records").glob("*.json")):
        try:
            found.append(read(path))
        except RecordError as error:
            faults.append(str(error))
    return found, faults


def find(run: Path, prefix: str) -> Record:
    """Return the record in the run folder `run` whose cell id starts with `prefix`. Raises `RecordError` if none or
    several match."""
    matches = sorted((run / "records").glob(f"{prefix}*.json")) if prefix.isalnum() else []
    if len(matches) != 1:
        count = "no record" if not matches else f"{len(matches)} records"
        raise RecordError(f"{run}: {count} with an id that starts with {prefix!r}; `bench show` lists ids")
    return read(matches[0])
