"""Parameters of registered entries (attacks, defenses, …): dataclass fields, checked when an entry is built."""

import dataclasses
import difflib
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, get_type_hints

from bench.errors import BenchError

T = TypeVar("T")


def parameter(
    default: Any,
    meaning: str,
    *,
    unit: str = "",
    source: str = "",
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    added: bool = False,
) -> Any:
    """Declare a parameter of an entry (attack, defense, data set or model) as a dataclass field.

    - `default`: default value.
    - `meaning`: text for `bench describe`.
    - `unit`: unit of the value; empty without a unit.
    - `source`: paper behind the default value, or "ours".
    - `low`, `high`: inclusive bounds; `above`: exclusive lower bound. None is no bound.
    - `added`: True for a parameter younger than published records. At its default, `values` leaves the parameter out,
      so that the ids of earlier cells (experiments) stay."""
    bounds = {"low": low, "high": high, "above": above}
    return dataclasses.field(
        default=default,
        metadata={"meaning": meaning, "unit": unit, "source": source, **bounds, **({"added": True} if added else {})},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of an entry, as `bench describe` shows it."""

    name: str
    """Name of the parameter."""
    type: str
    """Type, in words."""
    default: Any
    """Default value."""
    meaning: str = ""
    """Meaning in words."""
    unit: str = ""
    """Unit; empty without a unit."""
    source: str = ""
    """Paper behind the default, or "ours"."""
    low: float | None = None
    """Inclusive lower bound; None: no bound."""
    high: float | None = None
    """Inclusive upper bound; None: no bound."""
    above: float | None = None
    """Exclusive lower bound; None: no bound."""


@cache  # a matrix builds an entry for every cell
def parameters(entry: type) -> tuple[Parameter, ...]:
    """Return the parameters that the class `entry` of an attack, defense, data set or model declares, in the order of
    the class's fields."""
    if not dataclasses.is_dataclass(entry):
        return ()
    hints = get_type_hints(entry)
    items = (item for item in dataclasses.fields(entry) if item.init)
    return tuple(
        Parameter(name=item.name, type=_type_name(hints[item.name]), default=item.default, **_ours(item.metadata))
        for item in items
    )


def _ours(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the metadata written by `parameter`; a plug-in may add other keys."""
    return {name: value for name, value in metadata.items() if name in Parameter.__slots__}


def _type_name(hint: Any) -> str:
    plain = getattr(hint, "__name__", None) if not getattr(hint, "__args__", None) else None
    return plain or str(hint).replace("typing.", "")


def build(entry: type[T], params: Mapping[str, Any], *, where: str) -> T:
    """Return an instance of the class `entry` with the parameters `params`, after a check of names, types and bounds.
    `where` is a text for the beginning of every error message, such as the entry's name. Raises `BenchError` for an
    unknown name (with the nearest known name), a wrong type, a value out of bounds, and a `ValueError` from the entry's
    `__post_init__`."""
    from pydantic import ValidationError  # the import takes 0.1 s, which `bench list` saves

    kind: type = entry
    declared = {item.name: item for item in parameters(kind)}
    checked: dict[str, Any] = {}
    for name, value in params.items():
        if name not in declared:
            near = difflib.get_close_matches(name, declared, n=1)
            remedy = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(declared) or 'none'}"
            raise BenchError(f"{where}: unknown parameter {name!r}; {remedy}")
        if isinstance(value, list):
            value = tuple(value)
        try:
            checked[name] = _adapter(kind, name).validate_python(value, strict=not isinstance(value, int))
        except ValidationError as error:
            raise BenchError(f"{where}: {name} {error.errors()[0]['msg'].lower()}, got {value!r}") from None
        _check_bounds(declared[name], checked[name], where)
    try:
        return entry(**checked)
    except ValueError as error:
        raise BenchError(f"{where}: {error}") from None


@cache
def _adapter(entry: type, name: str) -> Any:
    """Return pydantic's check of the parameter `name` of the class `entry`."""
    from pydantic import TypeAdapter

    return TypeAdapter(get_type_hints(entry)[name])


def values(instance: Any) -> dict[str, Any]:
    """Return all parameters of `instance` (an attack, defense, data set or model), defaults included: parameter name →
    JSON value. A parameter declared as `added` is left out at its default."""
    if not dataclasses.is_dataclass(instance):
        return {}
    current = {
        item.name: getattr(instance, item.name)
        for item in dataclasses.fields(instance)
        if item.init and not (item.metadata.get("added") and getattr(instance, item.name) == item.default)
    }
    return {name: list(value) if isinstance(value, tuple) else value for name, value in current.items()}


def _check_bounds(parameter: Parameter, value: Any, where: str) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return
    if value != value:
        raise BenchError(f"{where}: {parameter.name} must be a number, got nan")
    for bound, words, holds in (
        (parameter.low, "at least", operator.ge),
        (parameter.above, "above", operator.gt),
        (parameter.high, "at most", operator.le),
    ):
        if bound is not None and not holds(value, bound):
            raise BenchError(f"{where}: {parameter.name} must be {words} {bound}, got {value}")
