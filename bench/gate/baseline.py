"""The gate's baseline file: an earlier run's shortened records, the margins, and the request (matrix and options).

A margin is the smallest worsening that counts. The file is a JSON object with a record in each line, so a change can be
reviewed. A rewritten baseline also keeps the oldest records, because worsenings below the margin add up."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from bench.cell import Frozen
from bench.errors import BenchError, RecordError
from bench.gate.verdict import GATE_METRICS
from bench.record import store
from bench.record.compact import Interner, for_baseline, short_json
from bench.record.files import write_atomically
from bench.record.request import Request
from bench.record.schema import Record
from bench.sanitize import first_error, first_line

FORMAT = 3
_MOST_BYTES = 2**30
_LISTS = {name: re.compile(rf'"{name}"\s*:\s*\[\s*') for name in ("records", "oldest")}
_BETWEEN = re.compile(r"\s*(?:,\s*(?=\{)|(?=\]))")  # a comma and the next record, or the end of the list
_AGAIN = "write it again: bench gate RUN --write-baseline FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Content of a baseline file of the regression gate: results of an earlier run, and the margins for a
    comparison."""

    margins: Mapping[str, float]
    """Map from metric name to margin, the smallest worsening that counts, for all `GATE_METRICS`."""
    request: Request | None
    """The matrix and options that started the run; None if unknown."""
    records: tuple[Record, ...]
    """Shortened records of the run."""
    oldest: tuple[Record, ...] = ()
    """Records of the first baseline, if a later baseline replaced it; empty otherwise. Small worsenings add up, so a
    run is also compared with these."""


class _File(Frozen):
    """The baseline file's JSON without its records, which are parsed one by one. `baseline` is the version of the
    format."""

    baseline: Literal[3]
    margins: dict[str, float]
    request: Request | None
    records: tuple[()] | None = None
    oldest: tuple[()] = ()


def of_run(records: Iterable[Record], request: Request | None, margins: Mapping[str, float]) -> Baseline:
    """Make a baseline of the regression gate from a run's records (results of experiments).

    - `request`: matrix and options of the run; None if unknown.
    - `margins`: metric → smallest worsening that counts; they replace the defaults.

    Raises `BenchError` if no record is finished."""
    kept = tuple(map(for_baseline, records))
    if not any(record.status == "done" for record in kept):
        raise BenchError("the run has no finished cell: nothing to compare with later")
    defaults = {name: metric.margin for name, metric in GATE_METRICS.items()}
    return Baseline(margins={**defaults, **margins}, request=request, records=kept)


def write(path: Path, baseline: Baseline) -> None:
    """Write `baseline` to the file `path`, atomically; raises `StorageError` on failure."""
    request = baseline.request and asdict(baseline.request)
    head = {"baseline": FORMAT, "margins": dict(baseline.margins), "request": request}
    text = json.dumps(head, indent=1)[:-2]
    for name, records in (("records", baseline.records), ("oldest", baseline.oldest)):
        lines = [json.dumps(short_json(record), sort_keys=True, allow_nan=False) for record in records]
        text += f',\n "{name}": [\n' + ",\n".join(lines) + ("\n" if lines else "") + " ]"
    write_atomically(path, (text + "\n}\n").encode())


def replacing(made: Baseline, earlier: Baseline) -> Baseline:
    """Prepare a new baseline `made` that replaces the `earlier` baseline: add the oldest known records, those of the
    first baseline. Later runs are also compared with these, because small worsenings, each within the margin, add up.
    No records are added if they equal the new records, or if protocol versions differ."""
    oldest = earlier.oldest or earlier.records
    protocols = {record.protocol for record in (*made.records, *oldest)}
    return replace(made, oldest=oldest if len(protocols) == 1 and oldest != made.records else ())


def read(path: Path) -> Baseline:
    """Read the baseline file at `path`; raises `BenchError` that names the fault and the remedy."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise BenchError(f"{path}: larger than {_MOST_BYTES >> 20} MiB, which no baseline is; {_AGAIN}")
        return parse(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise BenchError(f"{path}: no such file; bench gate RUN --write-baseline {path} makes it") from None
    except OSError as error:
        raise BenchError(f"{path}: cannot be read ({error.strerror})") from None


def parse(content: bytes, path: str) -> Baseline:
    """Parse the `content` of a baseline file; `path` names the file in errors. Raises `BenchError` that names the fault
    and the remedy."""
    try:
        text = content.decode()
        intern = Interner()
        records, text = _taken_out(text, "records", intern)
        oldest, text = _taken_out(text, "oldest", intern)
        file = _File.model_validate_json(text)
        if file.records is None:
            raise BenchError(f"{path}: not a baseline (it has no records); {_AGAIN}")
    except ValidationError as error:
        raise BenchError(f"{path}: not a baseline ({first_error(error)}); {_AGAIN}") from None
    except (RecordError, RecursionError) as error:
        raise BenchError(f"{path}: not a baseline: {error}") from None
    except ValueError as error:  # not text, or invalid JSON after some record
        raise BenchError(f"{path}: not a baseline ({first_line(error)}); {_AGAIN}") from None
    return Baseline(margins=file.margins, request=file.request, records=tuple(records), oldest=tuple(oldest))


def _taken_out(text: str, name: str, intern: Interner) -> tuple[list[Record], str]:
    """Cut the list `name` out of the JSON text; return the list's records and the remaining text. Records are parsed
    one by one, because 10⁵ records as a single JSON object take gigabytes. Raises `RecordError` for an invalid record,
    `ValueError` for an invalid list."""
    records: list[Record] = []
    start = _LISTS[name].search(text)
    if start is None:
        return records, text
    decode, at = json.JSONDecoder().raw_decode, start.end()
    while text[at : at + 1] != "]":
        _, end = decode(text, at)
        records.append(intern(store.parse(text[at:end], "a record of it", _AGAIN)))
        between = _BETWEEN.match(text, end)
        if between is None:
            raise ValueError(f"the list of its records breaks off after {len(records)}")
        at = between.end()
    return records, text[: start.end()] + text[at:]
