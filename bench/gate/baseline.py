"""A baseline file: what the gate needs of a run's records, its margins, and the matrix that asked.

One JSON object, with one record a line, so that a change of the baseline can be reviewed.  Records are cut to
what is compared: no pictures, no arrays.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.errors import MALFORMED, BenchError
from bench.gate.verdict import METRICS
from bench.record.compact import cut_victims, only
from bench.record.files import write_atomically
from bench.record.store import Record

SCHEMA = 1
_MOST_BYTES = 2**30
_VICTIM = ("status", "clients", "examples", "reading_snr_db", "reading_cosine")
_PICTURE = ("status", "success", "rmse", "psnr_db", "best_floor_db")
_SUMMARY = ("reading_snr_db_least", "accuracy", "diverged", "rounds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The command that made a run: matrix file or preset, its scale, defenses and plug-ins added, as typed."""

    matrix: str
    scale: str | None = None
    defenses: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """`margins` by metric, all of `METRICS`; `asked` None for a run that does not say what it was asked."""

    margins: Mapping[str, float]
    asked: Asked | None
    records: tuple[Record, ...]


def of_run(records: Iterable[Record], asked: Asked | None, margins: Mapping[str, float]) -> Baseline:
    """The baseline of a run's records; `margins` replace defaults.  Raises `BenchError` for no finished cell."""
    kept = tuple(_cut(record) for record in records)
    if not any(record.status == "done" for record in kept):
        raise BenchError("the run has no finished cell: nothing to compare with later")
    defaults = {name: metric.margin for name, metric in METRICS.items()}
    return Baseline(margins={**defaults, **margins}, asked=asked, records=kept)


def write(path: Path, baseline: Baseline) -> None:
    """Write the file, whole or not at all; raises `StorageError` where it cannot be."""
    head = {
        "baseline": SCHEMA, "margins": dict(baseline.margins),
        "asked": None if baseline.asked is None else asdict(baseline.asked),
    }  # fmt: skip
    lines = [json.dumps(asdict(record), sort_keys=True, allow_nan=False) for record in baseline.records]
    text = json.dumps(head, indent=1)[:-2] + ',\n "records": [\n' + ",\n".join(lines) + "\n ]\n}\n"
    write_atomically(path, text.encode())


def read(path: Path) -> Baseline:
    """Read a baseline; raises `BenchError` with what is wrong and the remedy."""
    again = "write it again: bench gate RUN --write-baseline FILE"
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise BenchError(f"{path}: larger than {_MOST_BYTES >> 20} MiB, which no baseline is; {again}")
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise BenchError(f"{path}: no such file; bench gate RUN --write-baseline {path} makes it") from None
    except OSError as error:
        raise BenchError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise BenchError(f"{path}: not a baseline ({error}); {again}") from None
    try:
        if content["baseline"] != SCHEMA:
            raise BenchError(f"{path}: schema {content['baseline']!r}, this bench reads {SCHEMA}; {again}")
        return Baseline(
            margins={str(name): float(margin) for name, margin in content["margins"].items()},
            asked=None if content["asked"] is None else _asked(content["asked"]),
            records=tuple(_record(one) for one in content["records"]),
        )
    except MALFORMED as error:
        raise BenchError(f"{path}: not a baseline ({type(error).__name__}: {error}); {again}") from None


def read_asked(run: Path) -> Asked | None:
    """What a run folder says it was asked; None where it does not."""
    try:
        return _asked(json.loads((run / "asked.json").read_text("utf-8")))
    except (OSError, *MALFORMED):
        return None


def keep_asked(run: Path, asked: Asked) -> None:
    """Note in the run folder what it was asked."""
    write_atomically(run / "asked.json", f"{json.dumps(asdict(asked), indent=1)}\n".encode())


def _asked(content: Mapping[str, Any]) -> Asked:
    texts = {name: tuple(str(one) for one in content[name]) for name in ("defenses", "plugins")}
    scale = content["scale"]
    return Asked(matrix=str(content["matrix"]), scale=None if scale is None else str(scale), **texts)


def _record(content: Mapping[str, Any]) -> Record:
    record = Record(**content)
    if not isinstance(record.cell, dict) or not isinstance(record.victims, list):
        raise ValueError("a record's fields are not a record's")
    return record


def _cut(record: Record) -> Record:
    """The record without what no comparison reads."""
    norm = record.summary.get("conditions", {}).get("weights_norm")
    summary = {**only(record.summary, _SUMMARY), "conditions": {"weights_norm": norm}}
    return Record(
        id=record.id, status=record.status, cell=record.cell, source=record.source, summary=summary,
        victims=cut_victims(record, _VICTIM, _PICTURE), environment={}, cost=only(record.cost, ("overhead",)),
        reason=record.reason,
    )  # fmt: skip
