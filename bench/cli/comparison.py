"""Two cells side by side: what differs in the question, and the paired difference if there is one."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import isclose
from typing import Any

import numpy as np

from bench.cell import UNASKED
from bench.leaderboard.blocks import entry
from bench.record import fingerprint as source
from bench.record.store import Record
from bench.scoring.intervals import mcnemar, paired
from bench.scoring.summary import median

_ENTRIES = ("attack", "defense", "model", "dataset")
_WORST = {"rmse": np.inf, "psnr_db": -np.inf}  # what a picture without the figure counts as
Place = tuple[int, int]  # reading, picture


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field of the two questions; "absent" where a cell has no such field."""

    field: str
    a: Any
    b: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """A against B on the same pictures; shares and differences are A's less B's.

    `interval` of the difference in ASR at 95 %; `p_value` McNemar's; `rmse` and `psnr_db` medians of
    the differences picture by picture; `only_a` and `only_b` the pictures (reading, picture) that
    leaked to one alone.
    """

    pictures: int
    difference: float
    interval: tuple[float, float]
    p_value: float
    different: bool
    rmse: float | None
    psnr_db: float | None
    only_a: tuple[Place, ...]
    only_b: tuple[Place, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What `bench compare` tells: `unpaired` says why there is no paired difference."""

    questions: tuple[Difference, ...]
    sources: tuple[str, ...]
    unpaired: str | None
    paired: Paired | None

    def json(self) -> dict[str, Any]:
        return asdict(self)


def compare(a: Record, b: Record) -> Comparison:
    """Compare two records; raises what records with other fields make it raise."""
    reason = unpaired(a, b)
    return Comparison(
        questions=tuple(questions(a.cell, b.cell)), sources=tuple(source.changed(a.source, b.source)),
        unpaired=reason, paired=None if reason else _paired(a, b),
    )  # fmt: skip


def questions(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Difference]:
    """The fields in which two questions differ; an entry of another name is one difference."""
    for key in sorted({*a, *b}):
        one, other = a.get(key, "absent"), b.get(key, "absent")
        if one == other:
            continue
        both = isinstance(one, dict) and isinstance(other, dict)
        if both and key in _ENTRIES and one["name"] != other["name"]:
            yield Difference(field=key, a=entry(one), b=entry(other))
        elif both:
            inner = questions(one, other)
            yield from (Difference(field=_joined(key, each.field), a=each.a, b=each.b) for each in inner)
        elif key not in UNASKED:
            yield Difference(field=key, a=one, b=other)


def unpaired(a: Record, b: Record) -> str | None:
    """Why the two cannot be compared picture by picture, or None: the same victims and weights."""
    for name, record in (("A", a), ("B", b)):
        if record.cell["kind"] != "attack":
            return f"{name} is a training, which has no victims"
        if record.status != "done":
            return f"{name} is {record.status}: {record.reason}"
    if a.cell["dataset"]["sha256"] != b.cell["dataset"]["sha256"]:
        return "they are of different data"
    if _weights(a) != _weights(b):
        return "they are under different weights"
    norms = [record.summary["conditions"]["weights_norm"] for record in (a, b)]
    if None not in norms and not isclose(*norms, rel_tol=1e-6):
        return f"their weights have norms {norms[0]:g} and {norms[1]:g}, so they are not the same"
    if len(a.victims) != len(b.victims):
        return f"they have {len(a.victims)} and {len(b.victims)} readings"
    for row, (one, other) in enumerate(zip(a.victims, b.victims, strict=True)):
        if one["clients"] != other["clients"]:
            return f"reading {row} is of client {_some(one['clients'])} and of {_some(other['clients'])}"
        if one["examples"] != other["examples"]:
            return f"reading {row} is of example {_some(one['examples'])} and of {_some(other['examples'])}"
    return None if a.victims else "they have no readings"


def _weights(record: Record) -> tuple[Any, ...]:
    """What makes the weights: the model, and its seed, file or training round."""
    given = {key: value for key, value in record.cell["weights"].items() if key not in UNASKED}
    return record.cell["model"], given, record.cell["seed"] if given["kind"] == "init" else None


def _paired(a: Record, b: Record) -> Paired:
    places = [(row, n) for row, victim in enumerate(a.victims) for n in range(len(victim["pictures"]))]
    first, second = _column(a, places, "success", bool), _column(b, places, "success", bool)
    rows = [row for row, _ in places]
    # Pictures of one batch leak together: readings are resampled whole.
    clusters = rows if 1 < len(set(rows)) < len(rows) else None
    difference, low, high = paired(first, second, clusters=clusters)
    medians = {name: _median(a, b, places, name) for name in _WORST}
    return Paired(
        pictures=len(places), difference=difference, interval=(low, high), p_value=mcnemar(first, second),
        different=not low <= 0 <= high, **medians,
        only_a=tuple(place for place, x, y in zip(places, first, second, strict=True) if x and not y),
        only_b=tuple(place for place, x, y in zip(places, first, second, strict=True) if y and not x),
    )  # fmt: skip


def _column(record: Record, places: list[Place], name: str, kind: type) -> Any:
    """One figure of every picture, in the order of `places`; NaN where there is none."""
    found = [record.victims[row]["pictures"][n][name] for row, n in places]
    return np.array([np.nan if value is None else value for value in found], kind)


def _median(a: Record, b: Record, places: list[Place], name: str) -> float | None:
    """Median of the differences; a failed picture is worse than any, two failed ones are equal."""
    first, second = (
        np.nan_to_num(_column(record, places, name, float), nan=_WORST[name], posinf=np.inf, neginf=-np.inf)
        for record in (a, b)
    )
    with np.errstate(invalid="ignore"):
        return median(np.where(first == second, 0.0, first - second), 0.0)


def _joined(key: str, field: str) -> str:
    return f"{key}.{field.removeprefix('params.')}"


def _some(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:6])) + (", …" if len(numbers) > 6 else "")
