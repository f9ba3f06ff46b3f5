"""What a change alters in a gate's baseline: margins, the requested matrix, plug-ins and records, in words.

A gate that reads the baseline of the change under review proves nothing: the change may weaken a defense and rewrite
the baseline. So the base revision's baseline decides, and every difference is listed."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from bench.errors import BenchError
from bench.gate.baseline import Baseline
from bench.gate.verdict import verdict
from bench.record.request import Request
from bench.record.schema import Record
from bench.sanitize import sanitize

_MOST = 5  # lines of a matrix, or places of the records


def of_baselines(then: Baseline, now: Baseline | None) -> Iterator[str]:
    """Yield a line of text for each difference between two baselines (stored results of an earlier run): `then` from
    the base revision in git, and `now` from the checkout. None for `now`: the checkout has no baseline."""
    if now is None:
        yield "the baseline file is deleted"
        return
    for name in sorted(then.margins.keys() | now.margins.keys()):
        old, new = then.margins.get(name), now.margins.get(name)
        if old != new:
            yield f"margin {sanitize(name)} {_number(old)} → {_number(new)}"
    yield from _requests(then.request, now.request)
    yield from _records(then, now)
    if then.oldest != now.oldest:
        yield f"oldest list {'dropped' if not now.oldest else 'changed' if then.oldest else 'added'}"


def of_matrices(name: str, then: bytes | None, now: bytes | None) -> Iterator[str]:
    """Yield a line of text for each difference between two versions of the matrix file `name` (the configurations of a
    run): `then` is the file's content in the base revision, and `now` in the checkout. None: the file does not exist.
    """
    if then is None or now is None:
        if then != now:
            yield f"matrix {name} {'added' if then is None else 'deleted'}"
        return
    old, new = _flat(then), _flat(now)
    differing = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    for key in differing[:_MOST]:
        yield f"matrix {name}: {sanitize(key)} {_change(old.get(key), new.get(key))}"
    if more := differing[_MOST:]:
        yield f"matrix {name}: {len(more)} more differences"


def _requests(then: Request | None, now: Request | None) -> Iterator[str]:
    if then is None or now is None:
        if then != now:
            yield f"request {'added' if then is None else 'dropped'}"
        return
    names = {"plugins": "plug-in list", "defenses": "list of added defenses", "attacks": "list of attacks"}
    for item in fields(Request):
        old, new = getattr(then, item.name), getattr(now, item.name)
        if old != new:
            yield f"{names.get(item.name, item.name)} {_shown(old)} → {_shown(new)}"


def _records(then: Baseline, now: Baseline) -> Iterator[str]:
    """Yield how many records differ, and the gate's own judgement of the difference."""
    if then.records == now.records:
        return
    old, new = ({record.cell.id: record for record in each.records} for each in (then, now))
    common = old.keys() & new.keys()
    results = sum(_outcome(old[id_]) != _outcome(new[id_]) for id_ in common)
    counts = [
        (results, "have other results"),
        (len(old.keys() - new.keys()), "gone"),
        (len(new.keys() - old.keys()), "new"),
    ]
    said = ", ".join(f"{count} {words}" for count, words in counts if count)
    yield f"records: of {len(old)}, {said}" if said else f"records: equal results of other code, {len(old)}"
    try:
        weaker = [
            row for row in verdict(then.records, now.records, then.margins).comparisons if row.outcome == "weaker"
        ]
    except BenchError as error:
        yield f"records: {error}"
        return
    for row in weaker[:_MOST]:
        figures = f"{row.metric} {_number(row.before)} → {_number(row.after)}"
        yield f"records: weaker in the new baseline: {row.defense}, {row.point}: {figures}"
    if more := weaker[_MOST:]:
        yield f"records: weaker in the new baseline in {len(more)} more comparisons"


def _outcome(record: Record) -> Any:
    return record.status, record.reason, record.result, record.broken


def _flat(content: bytes) -> dict[str, Any]:
    """Map each value's path, such as `axes.seed`, to the value; a file that is no TOML is a single value."""
    try:
        flat: dict[str, Any] = {}
        _flatten("", tomllib.loads(content.decode()), flat)
        return flat
    except (ValueError, RecursionError):
        return {"text": content}


def _flatten(key: str, value: Any, flat: dict[str, Any]) -> None:
    if isinstance(value, Mapping):
        for name, item in value.items():
            _flatten(f"{key}.{name}" if key else name, item, flat)
    elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        for number, item in enumerate(value):
            _flatten(f"{key}[{number}]", item, flat)
    else:
        flat[key] = value


def _change(then: Any, now: Any) -> str:
    """Describe two values; of two lists, only the items which differ."""
    if isinstance(then, list) and isinstance(now, list):
        parts = {
            "without": [item for item in then if item not in now],
            "new": [item for item in now if item not in then],
        }
        return "; ".join(f"{word} {_shown(items)}" for word, items in parts.items() if items) or "in another order"
    return f"{_shown(then)} → {_shown(now)}"


def _shown(value: Any) -> str:
    listed = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return sanitize("none" if listed in ("", None) else listed, 120)


def _number(value: float | None) -> str:
    return "absent" if value is None else f"{value:.4g}"
