"""Names in a matrix: an attack, defense, data set or model, with parameters or without, becomes an `Entry`."""

from collections.abc import Iterable
from typing import Any, Protocol

from bench.cell import Entry
from bench.errors import BenchError, NotApplicable
from bench.matrix.messages import Wrong, expected, nearest, quoted
from bench.matrix.typed import Typed, entries
from bench.parameters import build, parameters, values
from bench.registry import files

KINDS = {"dataset": "datasets", "model": "models", "attack": "attacks", "defense": "defenses"}


class Registry(Protocol):
    """Lookup of attacks, defenses, data sets and models by name, as in `bench.registry.entries`."""

    def names(self, kind: str, /) -> Iterable[str]:
        """Return the names of all entries of `kind`: "attacks", "defenses", "datasets" or "models"."""
        ...

    def load(self, kind: str, name: str, /) -> type:
        """Return the class of the entry `name` of `kind` ("attacks", "defenses", "datasets" or "models")."""
        ...


def registered(axis: str, raw: Any, registry: Registry) -> Entry:
    """Turn a value of a matrix file (a run's experiments) into an entry: an attack, defense, data set or model with
    parameters. `raw` is the value on the axis `axis`, such as `"prune"`, `"prune:share=.7"` as on a command line, or
    `{ name = "prune", share = 0.7 }`. Omitted parameters get their defaults, from `registry`. Raises `Wrong` with a
    line for each mistake."""
    if isinstance(raw, str) and ":" in raw:
        raw = _typed(raw, axis)
    table = {"name": raw} if isinstance(raw, str) else raw
    if not isinstance(table, dict) or not isinstance(table.get("name"), str):
        raise Wrong(expected("a name, or a table with a name", raw, '{ name = "…" }'))
    if "sweep" in table:
        raise Wrong("a sweep where one value is due; write one entry for each value")
    name, known = table["name"], tuple(registry.names(KINDS[axis]))
    if name not in known and (remedy := files.remedy(name, f"--{axis} NAME")) is not None:
        raise Wrong(remedy)
    if name not in known:
        raise Wrong(f"unknown {axis} {quoted(name)}; {nearest(name, known)}")
    try:
        cls = registry.load(KINDS[axis], name)
    except BenchError as error:
        raise Wrong(str(error)) from None
    params = {parameter: value for parameter, value in table.items() if parameter != "name"}
    return Entry(name=name, params=values(_build(cls, params, name)))


def _typed(text: str, axis: str) -> Typed:
    try:
        each = entries((text,), axis)
    except BenchError as error:
        raise Wrong(str(error)) from None
    if len(each) > 1:
        raise Wrong(f"{quoted(text)} holds {len(each)} names; write quotes around each")
    return each[0]


def _build(cls: type, params: dict[str, Any], name: str) -> Any:
    """Make an instance of `cls` with the parameters `params`; raises `Wrong` with a line for each wrong parameter."""
    types = {item.name: item.type for item in parameters(cls)}
    errors = []
    for parameter, value in list(params.items()):
        allowed = types.get(parameter, "")
        switch = isinstance(value, bool)
        if not allowed:
            remedy = nearest(parameter, types, "its parameters are")
            errors.append(f"{name}: unknown parameter {quoted(parameter)}; {remedy}")
        elif switch and "bool" not in allowed:  # `build` takes true for 1, and 1 for true
            errors.append(f"{name}: {parameter}: expected {allowed}, got {value!r}; write a number or text")
        elif isinstance(value, int) and not switch and allowed == "bool":
            errors.append(f"{name}: {parameter}: expected true or false, got {value!r}; write true or false")
        else:
            continue
        del params[parameter]
    while True:
        error, instance = _try(cls, params, name)
        if error is None:
            break
        culprit = next((key for key in params if _try(cls, {key: params[key]}, name)[0] == error), None)
        if culprit is None:  # two of them do not go together
            errors.append(error)
            break
        value = params.pop(culprit)
        shown = tuple(value) if isinstance(value, list) else value
        errors.append(error.replace(repr(shown), quoted(shown)))
    if errors:
        raise Wrong(*errors)
    return instance


def _try(cls: type, params: dict[str, Any], name: str) -> tuple[str | None, Any]:
    try:
        return None, build(cls, params, where=name)
    except BenchError as error:
        return str(error), None
    except (NotApplicable, TypeError) as error:  # it can never run; a parameter that it needs is missing
        return f"{name}: {error}", None
