"""The blocks of a matrix file, each checked whole: `[axes]`, `[[exclude]]`, `[[include]]`, `[[train]]`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from bench.matrix.axes import MOST, choices, one, pattern, size
from bench.matrix.border import Border, number, whole
from bench.matrix.combine import Choice, Extra, combine
from bench.matrix.faults import nearest, quoted
from bench.matrix.federated import bayesian
from bench.matrix.weights import OPTIONS

MOST_RULES = 200  # entries of `include` or of `exclude`
# Slowest first: the order of cells follows this list, not the file's order of keys.
AXES = (
    "dataset", "model", "weights", "federated", "attack", "knowledge", "grants", "point", "defense",
    "draw", "seed", "evaluations", "readings", "chunk",
)  # fmt: skip
TRAIN_AXES = ("dataset", "model", "federated", "defense", "rounds", "seed")
UNTIL = {
    "until_accuracy": 1.0,
    "until_epsilon": 1e6,
}  # where a training may stop → the most that can be asked
# Axes without a default, with an example.
REQUIRED = {
    "dataset": '["digits"]', "model": '["dlg-lenet"]', "attack": '["dlg"]', "point": '["type-2"]',
    "rounds": "[20]",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One training asked for itself: its choices, and the rounds whose weights are kept."""

    choices: Mapping[str, Choice]
    checkpoints: tuple[int, ...]
    options: Mapping[str, Any]


def settings(border: Border, table: Mapping[str, Any], names: Iterable[str], key: str = "") -> dict[str, int]:
    """Whole numbers that stand by themselves in a table."""
    found = {name: whole(border, f"{key}{name}", table[name], 1) for name in names if name in table}
    return {name: value for name, value in found.items() if value is not None}


def axes(border: Border, table: Any, names: Sequence[str], key: str) -> dict[str, list[Choice]]:
    """The axes of one table in the order of `names`: each a list of choices."""
    if not isinstance(table, dict):
        border.bad(key, "a table", table, f"[{key}]")
        return {}
    found: dict[str, list[Choice]] = {}
    lists = {name: table[name] for name in names if isinstance(table.get(name), list)}
    for name in names:
        if name not in table:
            continue
        if name not in lists:
            border.bad(f"{key}.{name}", "a list", table[name], f"{name} = {REQUIRED.get(name, '[…]')}")
        elif not lists[name]:
            border.faults.add(f"{key}.{name}", "empty", "give at least one value, or leave the key out")
    count = prod(sum(map(size, items)) for items in lists.values() if items)
    if count > MOST:
        border.faults.add(key, f"{count} combinations, at most {MOST} are allowed", "split the matrix")
        return {}
    for name, items in lists.items():
        found[name] = []
        for index, item in enumerate(items):
            found[name] += choices(border, name, f"{key}.{name}[{index}]", item)
    return found


def exclude(
    border: Border, content: Mapping[str, Any], there: Sequence[str] = (), scale: str | None = None
) -> list[dict[str, Any]]:
    """The patterns of each entry that is for this scale of those `there` are, or for all; a key that is no axis of
    this matrix is a fault, as it is at GitHub."""
    part, asked = replace(border, part=True), content.get("axes", {})
    found = []
    for where, table in tables(part, content, "exclude"):
        part.known(where, table, (*AXES, "scale"))
        if not _at_scale(border, where, table.get("scale"), there, scale):
            continue
        patterns = {}
        for name in AXES:
            if name not in table:
                continue
            choice = one(part, name, f"{where}.{name}", table[name])
            if choice is not None:
                patterns[name] = pattern(table[name], choice.plain)
            if isinstance(asked, dict) and name not in asked:
                remedy = f"add {name} to [axes], or leave it out here"
                part.faults.add(f"{where}.{name}", "not an axis of this matrix, so nothing agrees", remedy)
        found.append(patterns)
    return found


def include(
    border: Border, content: Mapping[str, Any], there: Sequence[str] = (), scale: str | None = None
) -> list[dict[str, Extra]]:
    """The values of each entry that is for this scale, or for all, and what of them the file spells out."""
    found = []
    for where, table in tables(border, content, "include"):
        border.known(where, table, (*AXES, "scale"))
        if not _at_scale(border, where, table.get("scale"), there, scale):
            continue
        extras = {}
        for name in AXES:
            choice = one(border, name, f"{where}.{name}", table[name]) if name in table else None
            if choice is not None:
                extras[name] = Extra(pattern(table[name], choice.plain), choice)
        found.append(extras)
    return found


def trainings(
    border: Border, content: Mapping[str, Any], there: Sequence[str] = (), scale: str | None = None
) -> tuple[Training, ...]:
    """The product of each `[[train]]` block that is for this scale of those `there` are, or for all."""
    found: list[Training] = []
    for where, table in tables(border, content, "train"):
        border.known(where, table, (*TRAIN_AXES, "checkpoints", "scale", *OPTIONS, *UNTIL, "bayesian"))
        if not _at_scale(border, where, table.get("scale"), there, scale):
            continue
        for name in ("dataset", "model", "rounds"):
            if name not in table:
                border.faults.add(where, f"lacks {name}", f"add e.g. {name} = {REQUIRED[name]}")
        own = axes(border, table, TRAIN_AXES, where)
        options: dict[str, Any] = {**OPTIONS, **settings(border, table, OPTIONS, f"{where}.")}
        for name in (name for name in UNTIL if name in table):
            limit = number(border, f"{where}.{name}", table[name], 1e-6, UNTIL[name])
            options |= {} if limit is None else {name: limit}
        if "bayesian" in table:
            options["bayesian"] = bayesian(border, f"{where}.bayesian", table["bayesian"])
        last = min((choice.value for choice in own.get("rounds", [])), default=1)
        kept = _checkpoints(border, f"{where}.checkpoints", table.get("checkpoints", []), last)
        if not border.faults:
            rows = combine(own)
            found += [Training(choices=row.choices, checkpoints=kept, options=options) for row in rows]
        if len(found) > MOST:
            border.faults.add("train", f"more than {MOST} trainings", "split the matrix")
            break
    return tuple(found)


def scales(border: Border, content: Mapping[str, Any]) -> tuple[str, ...]:
    """The scales that a matrix comes in, the first if none is asked for."""
    raw = content.get("scales", [])
    if isinstance(raw, list) and all(isinstance(name, str) and name.isidentifier() for name in raw):
        return tuple(dict.fromkeys(raw))
    border.bad("scales", "a list of names", raw, 'scales = ["small", "full"]')
    return ()


def _at_scale(border: Border, where: str, asked: Any, there: Sequence[str], scale: str | None) -> bool:
    if asked is None:
        return True
    if asked not in there:
        border.faults.add(f"{where}.scale", f"unknown scale {quoted(asked)}", nearest(str(asked), there))
    return bool(asked == scale)


def tables(border: Border, content: Mapping[str, Any], key: str) -> list[tuple[str, dict[str, Any]]]:
    """The entries of an array of tables, each with where it stands."""
    entries = content.get(key, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        border.bad(key, "tables", entries, f"[[{key}]]")
        return []
    if len(entries) > MOST_RULES:
        remedy = f"at most {MOST_RULES} are allowed; use sweeps or several files"
        border.faults.add(key, f"{len(entries)} entries", remedy)
        return []
    for index, entry in enumerate(entries):
        if not entry:
            border.faults.add(f"{key}[{index}]", "empty", 'give it a key, e.g. dataset = "digits"')
    return [(f"{key}[{index}]", entry) for index, entry in enumerate(entries)]


def _checkpoints(border: Border, key: str, raw: Any, last: int) -> tuple[int, ...]:
    if not isinstance(raw, list):
        border.bad(key, "a list of rounds", raw, "checkpoints = [5, 20]")
        return ()
    found = [whole(border, f"{key}[{index}]", item, 0) for index, item in enumerate(raw)]
    rounds = {item for item in found if item is not None}
    for item in sorted(rounds):
        if item > last:
            border.faults.add(key, f"{item} is after the last of {last} rounds", f"give 0 to {last}")
    return tuple(sorted(rounds))
