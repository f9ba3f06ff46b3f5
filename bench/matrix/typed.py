"""Entries as they are typed on a command line, and a matrix of them as TOML text."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from bench.errors import BenchError

Typed = str | dict[str, Any]  # a name, or a table with its name and parameters


def entries(texts: Sequence[str], option: str) -> list[Typed]:
    """`cpl,gradinv`, `prune:share=.9,at=example` → the values of an axis; each text may hold several.

    A part with a sign and no name belongs to the entry before it.  Raises `BenchError` naming `option`.
    """
    values: list[Typed] = []
    for part in (part.strip() for text in texts for part in text.split(",")):
        name, colon, rest = part.partition(":")
        if not part or (colon and not name):
            raise BenchError(f"{option}: an empty name; write {option} NAME or {option} NAME:PARAMETER=VALUE")
        if colon or "=" not in part:
            values.append({"name": name} if colon else part)
            assignment = rest
        else:
            assignment = part
        if not assignment:
            continue
        key, sign, value = assignment.partition("=")
        last = values[-1] if values else None
        if not key or not sign or not isinstance(last, dict):
            raise BenchError(f"{option}: {part!r} is no parameter; write {option} NAME:PARAMETER=VALUE")
        last[key.strip()] = number_or_text(value.strip())
    return values


def number_or_text(text: str) -> Any:
    """`2`, `.9`, `true` and whatever else is JSON as that, any other text as the text it is."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def matrix_text(title: str, axes: Mapping[str, Sequence[Any]], budgets: Mapping[str, int]) -> str:
    """A matrix of these axes and budgets, as TOML."""
    lines = [f"title = {_value(title)}", *(f"{name} = {_value(value)}" for name, value in budgets.items())]
    lines += ["", "[axes]", *(f"{name} = {_list(values)}" for name, values in axes.items())]
    return "\n".join(lines) + "\n"


def _list(values: Sequence[Any]) -> str:
    return "[" + ", ".join(_value(value) for value in values) + "]"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return (
            "{ "
            + ", ".join(
                f"{json.dumps(key)} = {_value(item)}" if not _bare(key) else f"{key} = {_value(item)}"
                for key, item in value.items()
            )
            + " }"
        )
    if isinstance(value, list | tuple):
        return _list(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    return json.dumps(str(value), ensure_ascii=False)


def _bare(key: str) -> bool:
    return key.replace("_", "").replace("-", "").isalnum() and key.isascii()
