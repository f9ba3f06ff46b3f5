"""One record as MLflow shows it: name, tags for every axis, parameters, metrics.  No mlflow here."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import RecordError
from bench.record.store import Record, is_private, read
from bench.tracking.store import digest

# MLflow 3.17, utils/validation.py.
_KEY, _PARAM, _TAG, _NAME = 250, 6000, 8000, 250
_TAGS = 90  # of 100 in one request: the rest are for what the upload adds
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_NOT_A_KEY = re.compile(r"[^\w\-. :/]", re.ASCII)
_ENDINGS = {"done": "FINISHED", "n/a": "KILLED", "crashed": "FAILED"}
# Content hashes and paths say nothing to a reader of the parameter table; the tags have the hashes.
_UNSHOWN = ("kind", "sha256", "path")
_AXES = (
    "point", "knowledge", "labels", "repeated_readings", "colluders", "evaluations", "readings", "rounds", "seed",
    "draw",
)  # fmt: skip
_FEDERATED = ("clients", "per_round", "steps", "batch", "rate", "partition", "client_examples")
_WEIGHTS = ("round", "training", "sha256")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """What is logged of one record; `metrics` holds (name, value, step), `seconds` how long it took."""

    sha256: str
    name: str
    status: str
    tags: dict[str, str]
    params: dict[str, str]
    metrics: list[tuple[str, float, int]]
    seconds: float


def load(path: Path) -> tuple[Record, RunView]:
    """A record file and its view; raises `RecordError` for one that is damaged or misnamed."""
    try:
        sha256 = digest(path.read_bytes())
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror}); run the cell again") from None
    record = read(path)
    # The id goes into a search of the store.
    if record.id != path.stem or not path.stem.isalnum():
        raise RecordError(f"{path}: the record in it calls itself {record.id!r}; name the file by its id")
    try:
        return record, view(record, sha256)
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise RecordError(f"{path}: its fields are not a record's ({error}); run the cell again") from None


def view(record: Record, sha256: str) -> RunView:
    """The view of a record whose file has this SHA-256; its texts, keys and numbers suit MLflow."""
    # The cell's own come first: what is over the limit is some text of the environment or the summary.
    tags = [(suitable_key(key), _cut(value, _TAG)) for key, value in _tags(record, sha256).items() if value]
    return RunView(
        sha256=sha256,
        name=_name(record.cell)[:_NAME],
        status=_ENDINGS[record.status],
        tags=dict(tags[:_TAGS]),
        params={suitable_key(key): _cut(value, _PARAM) for key, value in flat_params(record.cell)},
        metrics=list(_metrics(record)),
        seconds=min(max(finite(record.cost.get("wall_seconds")) or 0.0, 0.0), 1e9),
    )


def clean(text: str) -> str:
    """Text without control characters and lone surrogates, which stores and terminals choke on."""
    return _CONTROL.sub(" ", text.encode("utf-8", "replace").decode())


def _name(cell: Mapping[str, Any]) -> str:
    """`cpl/plain × prune(share=0.7) @ type-1, digits dlg-lenet`: first what tells cells apart.

    MLflow's tables and charts cut a name after some twenty letters.
    """
    where = f"{_entry_name(cell.get('dataset'))} {_entry_name(cell.get('model'))}"
    defense = _entry(cell.get("defense"))
    if "attack" not in cell:
        return clean(f"training × {defense}, {where}")
    attack = _entry_name(cell["attack"])
    return clean(f"{attack}/{cell.get('knowledge', 'plain')} × {defense} @ {cell.get('point')}, {where}")


def _tags(record: Record, sha256: str) -> dict[str, str]:
    cell = record.cell
    tags = {
        "bench.cell": record.id,
        "bench.record": sha256,
        "bench.status": record.status,
        "bench.reason": record.reason or "",
        "bench.kind": str(cell.get("kind", "")),
        "bench.record.fingerprint": str(record.source.get("sha256") or digest(_json(record.source).encode())),
        "bench.protocol": str(record.source.get("protocol") or record.environment.get("protocol", "")),
        "bench.data": str(cell.get("dataset", {}).get("sha256", ""))
        if _is_entry(cell.get("dataset"))
        else "",
        "bench.private": str(is_private(record)).lower(),
    }
    for axis in ("dataset", "model", "defense", "attack"):
        if axis in cell:
            tags[f"bench.{axis}"] = _entry_name(cell[axis])
    tags |= _fields(cell, _AXES, "bench.")
    federated, weights = cell.get("federated"), cell.get("weights")
    if isinstance(federated, dict):
        tags["bench.federated"] = str(federated.get("algorithm", ""))
        tags |= _fields(federated, _FEDERATED, "bench.")
    if isinstance(weights, dict):
        tags["bench.record.checkpoints"] = str(weights.get("kind", ""))
        tags |= _fields(weights, _WEIGHTS, "bench.weights_")
    for prefix, group in (("environment", record.environment), ("summary", record.summary)):
        for key, value in group.items():
            if isinstance(value, str):
                tags[f"{prefix}.{key}"] = value
            elif isinstance(value, list) and value and all(isinstance(item, str) for item in value):
                tags[f"{prefix}.{key}"] = "; ".join(value)
    return tags


def _fields(group: Mapping[str, Any], names: Iterable[str], prefix: str) -> dict[str, str]:
    """Those of the fields that are set, as text: `true`, `3`, `iid`."""
    set_ = {name: group[name] for name in names if group.get(name) is not None}
    return {f"{prefix}{name}": item if isinstance(item, str) else _json(item) for name, item in set_.items()}


def flat_params(cell: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """A cell's fields, flattened: `defense`, `defense.share`, `federated.batch`."""
    for key, value in cell.items():
        if key in _UNSHOWN and prefix != "":
            continue
        if _is_entry(value):
            yield f"{prefix}{key}", str(value["name"])
            rest = {field: item for field, item in value.items() if field not in ("name", "params")}
            yield from flat_params({**rest, **value.get("params", {})}, f"{prefix}{key}.")
        elif isinstance(value, dict):
            yield from flat_params(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value if isinstance(value, str) else _json(value)


def _metrics(record: Record) -> Iterator[tuple[str, float, int]]:
    """Every finite number of summary and cost, one level down joined by "/"; curves with their steps."""
    group = "utility" if record.cell.get("kind") == "training" else "leak"
    for prefix, numbers in ((group, record.summary), ("cost", record.cost)):
        for key, value in numbers.items():
            inner = value.items() if isinstance(value, dict) else [("", value)]
            for below, item in inner:
                name = suitable_key(f"{prefix}/{key}/{below}" if below else f"{prefix}/{key}")
                yield from ((name, number, step) for step, number in _points(item))


def _points(value: Any) -> Iterator[tuple[int, float]]:
    """(step, number): one at step 0 for a number, several for a curve [[step, number], …]."""
    if (number := finite(value)) is not None:
        yield 0, number
    elif isinstance(value, list):
        for item in value:
            if not (isinstance(item, list) and len(item) == 2 and isinstance(item[0], int)):
                return
            # Steps are 64-bit integers in every store.
            if (number := finite(item[1])) is not None and abs(item[0]) < 2**63:
                yield item[0], number


def finite(value: Any) -> float | None:
    """The number, or None for what is none or not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _is_entry(value: Any) -> bool:
    return isinstance(value, dict) and "name" in value and isinstance(value.get("params", {}), dict)


def _entry_name(value: Any) -> str:
    return str(value["name"]) if _is_entry(value) else "?"


def _entry(value: Any) -> str:
    name, params = _entry_name(value), value.get("params", {}) if _is_entry(value) else {}
    shown = ", ".join(f"{key}={item}" for key, item in sorted(params.items()))
    return f"{name}({shown})" if shown else name


def suitable_key(text: str) -> str:
    """A key MLflow takes: its character set, a path in normal form, no longer than it allows."""
    parts = [part for part in _NOT_A_KEY.sub("_", text).split("/") if part]
    return "/".join("_" * len(part) if set(part) == {"."} else part for part in parts)[:_KEY].strip("/")


def _cut(text: str, limit: int) -> str:
    text = clean(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
