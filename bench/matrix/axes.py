"""One value of an axis: from what TOML holds to a checked choice, or a fault with its remedy."""

import math
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

from bench.cell import Grants
from bench.matrix.border import KINDS, Border, entry, whole
from bench.matrix.combine import Choice
from bench.matrix.faults import escaped, nearest, quoted
from bench.matrix.federated import federated
from bench.matrix.weights import weights
from bench.points import POINTS

MOST = 100_000  # combinations of one matrix
# The least value of each axis of whole numbers.
NUMBERS = {"evaluations": 1, "readings": 1, "chunk": 1, "seed": 0, "draw": 0, "rounds": 1}
KNOWLEDGE = ("plain", "adaptive")


def choices(border: Border, axis: str, key: str, raw: Any) -> list[Choice]:
    """The values that one item of an axis stands for: itself, or the product of its sweep."""
    found = (one(border, axis, key, item) for item in _unswept(border, key, raw))
    return [choice for choice in found if choice is not None]


def one(border: Border, axis: str, key: str, raw: Any) -> Choice | None:
    """The checked value of one item without a sweep, or None and a fault."""
    if isinstance(raw, dict) and "sweep" in raw:
        border.faults.add(f"{key}.sweep", "a sweep where one value is due", "write one entry for each value")
        return None
    if axis in KINDS:
        return entry(border, axis, key, raw)
    if axis in NUMBERS:
        number = whole(border, key, raw, NUMBERS[axis])
        return None if number is None else Choice(number, number)
    return _READERS[axis](border, key, raw)


def size(raw: Any) -> int:
    """How many values an item stands for, counted before any is made."""
    sweep = raw.get("sweep") if isinstance(raw, dict) else None
    lists = sweep.values() if isinstance(sweep, dict) else ()
    return math.prod(max(1, len(items)) for items in lists if isinstance(items, list))


def pattern(raw: Any, plain: Any) -> Any:
    """The part of `plain` that `raw` spells out, for matching; lists match as a whole."""
    if isinstance(raw, dict) and isinstance(plain, dict):
        return {key: pattern(value, plain[key]) for key, value in raw.items() if key in plain}
    if isinstance(raw, str) and isinstance(plain, dict):
        return {"name": plain["name"]}
    return plain


def _unswept(border: Border, key: str, raw: Any) -> list[Any]:
    if not isinstance(raw, dict) or "sweep" not in raw:
        return [raw]
    fixed = {name: value for name, value in raw.items() if name != "sweep"}
    sweep, where = raw["sweep"], f"{key}.sweep"
    if not isinstance(sweep, dict) or not sweep:
        border.bad(where, "a table of lists", sweep, "sweep = { share = [0.5, 0.7] }")
        return []
    wrong = False
    for name, items in sweep.items():
        if not isinstance(items, list) or not items:
            wrong = True
            border.bad(f"{where}.{escaped(name)}", "a list with at least one value", items, "[1, 2]")
        elif name in fixed:
            wrong = True
            border.faults.add(f"{where}.{escaped(name)}", "fixed and swept", "keep one of the two")
    if wrong:
        return []
    names = sorted(sweep)  # the order of keys in a TOML table means nothing
    rows = product(*(sweep[name] for name in names))
    return [{**fixed, **dict(zip(names, row, strict=True))} for row in rows]


def _named(what: str, names: tuple[str, ...]) -> Callable[[Border, str, Any], Choice | None]:
    def read(border: Border, key: str, raw: Any) -> Choice | None:
        if not isinstance(raw, str):
            border.bad(key, f"the name of a {what}", raw, f'"{names[0]}"')
        elif raw not in names:
            border.faults.add(key, f"unknown {what} {quoted(raw)}", nearest(raw, names))
        else:
            return Choice(raw, raw)
        return None

    return read


def _grants(border: Border, key: str, raw: Any) -> Choice | None:
    example = '[], ["labels"], [{ repeated-readings = 100 }] or [{ colluders = 0.5 }]'
    if not isinstance(raw, list):
        border.bad(key, "a list of grants", raw, example)
        return None
    labels, repeated, colluders = False, 1, 0.0
    for index, item in enumerate(raw):
        where = f"{key}[{index}]"
        if isinstance(item, dict) and set(item) == {"repeated-readings"}:
            number = whole(border, f"{where}.repeated-readings", item["repeated-readings"], 1)
            repeated = number or 1
        elif isinstance(item, dict) and set(item) == {"colluders"}:
            share = item["colluders"]
            if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
                border.bad(f"{where}.colluders", "a share from 0 to 1", share, "0.5")
            else:
                colluders = float(share)
        elif isinstance(item, dict) and item:
            border.known(where, item, ("repeated-readings", "colluders"))
        elif item == "labels":
            labels = True
        elif isinstance(item, str):
            border.faults.add(where, f"unknown grant {quoted(item)}", f"the grants are {example}")
        else:
            border.bad(where, "a grant", item, example)
    found = Grants(labels=labels, repeated_readings=repeated, colluders=colluders)
    return Choice([labels, repeated, *([colluders] if colluders else [])], found)


_READERS: Mapping[str, Callable[[Border, str, Any], Choice | None]] = {
    "knowledge": _named("knowledge", KNOWLEDGE),
    "point": _named("point", tuple(POINTS)),
    "grants": _grants,
    "federated": federated,
    "weights": weights,
}
