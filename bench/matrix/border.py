"""Where a matrix is checked: its faults, the registry, its folder; and registered entries built there."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bench.cell import Entry
from bench.errors import BenchError, NotApplicable
from bench.matrix.combine import Choice
from bench.matrix.faults import Faults, escaped, nearest, quoted
from bench.parameters import build, parameters, values

KINDS = {"dataset": "datasets", "model": "models", "attack": "attacks", "defense": "defenses"}
LARGEST = 10**9


class Registry(Protocol):
    """What is needed of `bench.registry.entries`."""

    def names(self, kind: str, /) -> Iterable[str]: ...
    def load(self, kind: str, name: str, /) -> type: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Border:
    """`part`: the values are patterns of `exclude`, which need not be complete."""

    faults: Faults
    registry: Registry
    folder: Path
    part: bool = False

    def bad(self, key: str, expected: str, got: Any, example: str) -> None:
        """Tell a value of the wrong type."""
        self.faults.add(key, f"expected {expected}, got {quoted(got)}", f"write e.g. {example}")

    def known(self, key: str, table: Mapping[str, Any], names: Iterable[str]) -> None:
        """Tell every key of `table` that is not among `names`."""
        for name in table:
            if name not in names:
                path = f"{key}.{escaped(name)}" if key else escaped(name)
                self.faults.add(path, "unknown key", nearest(name, names, "the keys here are"))


def whole(border: Border, key: str, raw: Any, least: int) -> int | None:
    """A whole number from `least` to `LARGEST`, or None and a fault."""
    if isinstance(raw, bool) or not isinstance(raw, int):
        border.bad(key, "a whole number", raw, str(max(least, 1)))
        return None
    if not least <= raw <= LARGEST:
        border.faults.add(key, f"out of range, got {raw}", f"give {least} to {LARGEST}")
        return None
    return raw


def number(border: Border, key: str, raw: Any, low: float, high: float) -> float | None:
    """A number within these bounds, or None and a fault."""
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        border.bad(key, "a number", raw, f"{low:g}")
    elif not low <= raw <= high:
        border.faults.add(key, f"out of range, got {quoted(raw)}", f"give {low:g} to {high:g}")
    else:
        return float(raw)
    return None


def entry(border: Border, axis: str, key: str, raw: Any) -> Choice | None:
    """A registered name, alone or as `name` of a table that holds its parameters."""
    table = {"name": raw} if isinstance(raw, str) else raw
    if not isinstance(table, dict) or not isinstance(table.get("name"), str):
        border.bad(key, "a name, or a table with a name", raw, '{ name = "…" }')
        return None
    name, known = table["name"], tuple(border.registry.names(KINDS[axis]))
    if name not in known:
        border.faults.add(key, f"unknown {axis} {quoted(name)}", nearest(name, known))
        return None
    try:
        cls = border.registry.load(KINDS[axis], name)
    except BenchError as error:
        border.faults.add(key, str(error))
        return None
    given = {parameter: value for parameter, value in table.items() if parameter != "name"}
    faults, instance = _build(cls, given, f"{key}: {name}")
    for fault in faults:
        border.faults.add("", fault)
    if faults:
        return None
    full = values(instance)
    return Choice({"name": name, **full}, Entry(name=name, params=full))


def _build(cls: type, given: Mapping[str, Any], where: str) -> tuple[list[str], Any]:
    """All that is wrong with these parameters (`build` stops at the first), and the instance."""
    types = {item.name: item.type for item in parameters(cls)}
    rest: dict[str, Any] = {}
    faults = []
    for name, value in given.items():
        allowed, switch = types.get(name), isinstance(value, bool)
        if allowed is None:
            remedy = nearest(name, types, "its parameters are")
            faults.append(f"{where}: unknown parameter {quoted(name)}; {remedy}")
        elif switch and "bool" not in allowed:  # `build` takes true for 1, and 1 for true
            faults.append(f"{where}: {name}: expected {allowed}, got {value!r}; write a number or text")
        elif isinstance(value, int) and not switch and allowed == "bool":
            faults.append(f"{where}: {name}: expected true or false, got {value!r}; write true or false")
        else:
            rest[name] = value
    while True:
        fault, instance = _try(cls, rest, where)
        if fault is None:
            return faults, instance
        culprit = next((name for name in rest if _try(cls, {name: rest[name]}, where)[0] == fault), None)
        if culprit is None:  # two of them do not go together
            return [*faults, fault], None
        value = rest.pop(culprit)
        shown = tuple(value) if isinstance(value, list) else value
        faults.append(fault.replace(repr(shown), quoted(shown)))


def _try(cls: type, given: Mapping[str, Any], where: str) -> tuple[str | None, Any]:
    try:
        return None, build(cls, given, where=where)
    except BenchError as error:
        return str(error), None
    except (NotApplicable, TypeError) as error:  # it can never run; a parameter it needs is missing
        return f"{where}: {error}", None
