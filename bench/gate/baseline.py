"""A baseline file: what the gate needs of a run's records, its margins, and the request that made the run.

One JSON object, with one record a line, so that a change of the baseline can be reviewed.  Format 1 held records
of schema 1 and is still read.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AliasChoices, Field, ValidationError

from bench.cell import Frozen
from bench.errors import BenchError, RecordError
from bench.gate.verdict import GATE_METRICS
from bench.record import store
from bench.record.compact import Interner, for_baseline, short_json
from bench.record.files import write_atomically
from bench.record.request import Request
from bench.record.schema import Record
from bench.sanitize import first_error, first_line

FORMAT = 2
_MOST_BYTES = 2**30
_RECORDS = re.compile(r',\s*"records"\s*:\s*\[')
_SPACE, _BETWEEN, _END = re.compile(r"\s*"), re.compile(r"\s*,?\s*"), re.compile(r"\]\s*\}\s*")
_AGAIN = "write it again: bench gate RUN --write-baseline FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """`margins` by metric, all of `GATE_METRICS`; `request` is None for a run that does not say what it was."""

    margins: Mapping[str, float]
    request: Request | None
    records: tuple[Record, ...]


class _Head(Frozen):
    """The file's JSON but for its records, which are read one by one, by `bench.record.store`."""

    baseline: Literal[1, 2]
    margins: dict[str, float]
    request: Annotated[Request | None, Field(validation_alias=AliasChoices("request", "asked"))]


def of_run(records: Iterable[Record], request: Request | None, margins: Mapping[str, float]) -> Baseline:
    """The baseline of a run's records; `margins` replace defaults.  Raises `BenchError` for no finished cell."""
    kept = tuple(map(for_baseline, records))
    if not any(record.status == "done" for record in kept):
        raise BenchError("the run has no finished cell: nothing to compare with later")
    defaults = {name: metric.margin for name, metric in GATE_METRICS.items()}
    return Baseline(margins={**defaults, **margins}, request=request, records=kept)


def write(path: Path, baseline: Baseline) -> None:
    """Write the file, whole or not at all; raises `StorageError` where it cannot be."""
    request = baseline.request and asdict(baseline.request)
    head = {"baseline": FORMAT, "margins": dict(baseline.margins), "request": request}
    lines = [json.dumps(short_json(record), sort_keys=True, allow_nan=False) for record in baseline.records]
    text = json.dumps(head, indent=1)[:-2] + ',\n "records": [\n' + ",\n".join(lines) + "\n ]\n}\n"
    write_atomically(path, text.encode())


def read(path: Path) -> Baseline:
    """Read a baseline of either format; raises `BenchError` with what is wrong and the remedy."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise BenchError(f"{path}: larger than {_MOST_BYTES >> 20} MiB, which no baseline is; {_AGAIN}")
        text = path.read_text("utf-8")
        start = _RECORDS.search(text)
        file = _Head.model_validate_json(text if start is None else text[: start.start()] + "}")
        if start is None:
            raise BenchError(f"{path}: not a baseline (it has no records); {_AGAIN}")
        records = tuple(_parsed(text, start.end()))
    except FileNotFoundError:
        raise BenchError(f"{path}: no such file; bench gate RUN --write-baseline {path} makes it") from None
    except OSError as error:
        raise BenchError(f"{path}: cannot be read ({error.strerror})") from None
    except ValidationError as error:
        raise BenchError(f"{path}: not a baseline ({first_error(error)}); {_AGAIN}") from None
    except (RecordError, RecursionError) as error:
        raise BenchError(f"{path}: not a baseline: {error}") from None
    except ValueError as error:  # no text, or no JSON from a record on
        raise BenchError(f"{path}: not a baseline ({first_line(error)}); {_AGAIN}") from None
    return Baseline(margins=file.margins, request=file.request, records=records)


def _parsed(text: str, at: int) -> Iterator[Record]:
    """The records of the list that begins here and ends the file.  One at a time: the JSON of 10⁵ takes gigabytes."""
    decode, intern = json.JSONDecoder().raw_decode, Interner()
    at = _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing, too
    while text[at : at + 1] != "]":
        _, end = decode(text, at)
        yield intern(store.parse(text[at:end], "a record of it", _AGAIN))
        at = _BETWEEN.match(text, end).end()  # type: ignore[union-attr]
    if not _END.fullmatch(text, at):
        raise ValueError("the list of its records does not end it")
