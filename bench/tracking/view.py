"""A record as an MLflow run: tags, parameters and metrics from the fields of the record.

New cell fields, grants and metrics appear automatically.  This module does not import mlflow."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from PIL import Image

from bench.cell import NOT_IN_ID, AttackCell, Entry, Frozen, TrainingCell, marked
from bench.errors import RecordError
from bench.leaderboard.tradeoff import LISTENERS
from bench.record import names
from bench.record import store as records
from bench.record.metrics import METRICS
from bench.record.schema import Record, Share
from bench.sanitize import sanitize
from bench.tracking.store import digest

# MLflow 3.17, utils/validation.py.
_KEY, _PARAM, _TAG, _NAME = 250, 6000, 8000, 250
_TAGS = 90  # MLflow allows 100 per request; the upload adds further tags
_NOT_A_KEY = re.compile(r"[^\w\-. :/]", re.ASCII)
_ENDINGS = {"done": "FINISHED", "n/a": "KILLED", "crashed": "FAILED"}
_HEADS = ("name", "kind", "algorithm")  # a field shown as its group: `defense` is the defense's name
_UNSHOWN = ("arrays", "kind", "priors")  # fields for machines, or figures in the priors' own records
_FIRST = ("leak/asr", "utility/accuracy")  # MLflow's compare page draws a run's first metric
_LISTENERS = {point: name for name, (point, _) in LISTENERS.items()}
_LARGEST = 1e300  # a metric is a float
_LONGEST = 1e9  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """Content of an MLflow run in MLflow's terms (tags, parameters, metrics), made from a record or from a board row (a
    defense under a condition)."""

    sha256: str
    """SHA-256 of the record file, or of the board row's content."""
    name: str
    """Name of the MLflow run."""
    status: str
    """Status of the MLflow run, such as `FINISHED`."""
    tags: dict[str, str]
    """Tags, key → text."""
    params: dict[str, str]
    """Parameters, key → text."""
    metrics: list[tuple[str, float, int]]
    """Figures as (name, value, step); the step is a training round, an evaluation or 0."""
    seconds: float | None
    """Duration in seconds; None: unknown."""
    datasets: tuple[tuple[str, str], ...] = ()
    """Pairs (name, SHA-256) of the data sets, for MLflow's column Dataset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """Artifacts of an MLflow run: files, pictures for the image grid, and a table of victims."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    """File name → content, among the artifacts."""
    images: Sequence[tuple[str, int, Image.Image]] = ()
    """Pictures as (name, step, picture), for MLflow's image grid with a slider over the steps."""
    table: Mapping[str, Sequence[str | Image.Image]] = field(default_factory=dict)
    """Columns of a table of victims, column name → texts or pictures, for MLflow's page of artifacts; empty: no
    table."""


def load(path: Path) -> tuple[Record, RunView]:
    """Read a record file; return the record, and the content of its MLflow run. Raises `RecordError` for an unreadable,
    damaged or misnamed file."""
    try:
        sha256 = digest(path.read_bytes())
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror}); run the cell again") from None
    record = records.read(path)
    if record.id != path.stem:  # the id becomes part of a search in the store
        raise RecordError(f"{path}: the record in it calls itself {record.id!r}; name the file by its id")
    return record, view(record, sha256)


def view(record: Record, sha256: str) -> RunView:
    """Make the content of a record's MLflow run: tags, parameters and metrics in forms that MLflow accepts. `sha256` is
    the hash of the record file."""
    tags = [(suitable_key(key), clean(value, _TAG)) for key, value in _tags(record, sha256) if value]
    return RunView(
        sha256=sha256,
        name=clean(names.cell_name(record.cell), _NAME),
        status=_ENDINGS[record.status],
        tags=dict(tags[:_TAGS]),  # the cell's tags come first: the limit cuts texts about the environment
        params=suitable_params(record.cell),
        metrics=sorted(_metrics(record), key=lambda metric: metric[0] not in _FIRST),
        seconds=min(max(record.cost.wall_seconds, 0.0), _LONGEST),
        datasets=((clean(names.dataset_name(record.cell), _NAME), record.cell.dataset.sha256),),
    )


def clean(text: str, limit: int) -> str:
    """Return `text` on a single line without control characters, with at most `limit` characters."""
    return sanitize(" ".join(text.split()), limit)


def suitable_key(text: str) -> str:
    """Return `text` as a key for MLflow: only allowed characters, no relative path, 1 to 250 characters."""
    parts = [part for part in _NOT_A_KEY.sub("_", text).split("/") if part]
    return "/".join("_" * len(part) if set(part) == {"."} else part for part in parts)[:_KEY].strip("/") or "_"


def listener(point: str) -> str:
    """Return the name of the attacker at an interception point, such as `server` for `point` "type-0"."""
    return _LISTENERS.get(point, point)


def finite(figures: Mapping[str, float | None]) -> Iterator[tuple[str, float, int]]:
    """Turn `figures` into MLflow metrics: yield (name, value, step 0) for each finite figure; others are left out."""
    for name, value in figures.items():
        if value is not None and isfinite(value):
            yield suitable_key(name), value, 0


def suitable_params(part: Frozen, path: str = "") -> dict[str, str]:
    """Return the fields of a cell (experiment), or of the cell's part at `path`, as MLflow parameters: path of the
    field → text; hashes are left out."""
    return {
        suitable_key(key): clean(value, _PARAM) for key, value in flat(part, path) if key.rpartition(".")[2] != "sha256"
    }


def flat(part: Frozen, path: str = "", *, params: bool = True) -> Iterator[tuple[str, str]]:
    """Flatten a cell (experiment) to pairs (path, value as text) for MLflow's parameters and tags: a pair for each set
    field. Paths are such as `defense`, `defense.share` or `federated.batch`.

    - `part`: the cell, or its part at `path`.
    - `params`: True also yields the parameters of attack, defense, data set and model.

    Paths to weights files are left out."""
    hidden = () if isinstance(part, TrainingCell) else marked(type(part), NOT_IN_ID)
    for name in type(part).model_fields:
        value = getattr(part, name)
        if name in hidden:
            continue
        if isinstance(part, Entry) and name == "params":
            if params:
                yield from ((f"{path}.{key}", _text(item)) for key, item in value.items())
        elif isinstance(value, Frozen):
            yield from flat(value, f"{path}.{name}" if path else name, params=params)
        elif value not in (None, ()):
            yield path if path and name in _HEADS else f"{path}.{name}".lstrip("."), _text(value)


def _tags(record: Record, sha256: str) -> Iterator[tuple[str, str]]:
    yield "bench.cell", record.id
    yield "bench.record", sha256
    yield "bench.status", record.status
    yield "bench.reason", record.reason or ""
    yield "bench.fingerprint", digest(repr(record.provenance).encode())
    yield "bench.protocol", _text(record.protocol)
    yield "bench.private", _text(record.private)
    if record.provenance.left is not None and isinstance(
        record.cell, AttackCell
    ):  # the figures cover only these readings
        yield "bench.left", f"{len(record.provenance.left)} of {record.cell.readings} readings"
    yield from ((f"bench.{path}", text) for path, text in flat(record.cell, params=False))
    for prefix, group in (("environment", record.environment), ("result", record.result)):
        for path, value in _leaves(group):
            texts = value if isinstance(value, tuple) else (value,)
            if texts and all(isinstance(text, str) for text in texts):
                yield f"{prefix}.{path.replace('/', '.')}", "; ".join(texts)


def _metrics(record: Record) -> Iterator[tuple[str, float, int]]:
    """Yield (name, value, step) for each number in the record's result and cost, and each point of a curve."""
    group = "utility" if record.cell.kind == "training" else "leak"
    for prefix, part in ((group, record.result), ("cost", record.cost)):
        for path, value in _leaves(part):
            if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST:
                yield f"{prefix}/{path}", float(value), 0
    if record.training:
        yield from (("utility/curve", accuracy, step) for step, accuracy in record.training.curve)
    if record.attack and record.attack.summary:
        medians = ((metric.name, record.attack.summary.median(metric)) for metric in METRICS)
        yield from ((f"leak/{name}_median", value, 0) for name, value in medians if value is not None)
    if record.attack and (trajectory := record.attack.trajectory):
        losses = zip(trajectory.losses, trajectory.evaluations, strict=False)
        yield from (("leak/loss", loss, step) for loss, step in losses if loss is not None)


def _leaves(group: Any, *, nested: bool = True) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) for a dataclass's fields, such as `asr_low` or `privacy/epsilon`; none if `group` is None.
    `nested` False leaves out fields that are dataclasses."""
    for name in () if group is None else (each.name for each in fields(group)):
        value = getattr(group, name)
        if name in _UNSHOWN:
            continue
        if isinstance(value, Share):
            yield from ((name, value.value), (f"{name}_low", value.low), (f"{name}_high", value.high))
        elif is_dataclass(value) and nested:
            prefix = "" if name == "summary" else f"{name}/"
            yield from ((f"{prefix}{below}", leaf) for below, leaf in _leaves(value, nested=False))
        else:
            yield name, value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
