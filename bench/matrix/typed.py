"""Attacks and defenses as typed on a command line, such as `prune:share=.9,at=example`."""

import json
from collections.abc import Sequence
from typing import Any

from bench.errors import BenchError

Typed = str | dict[str, Any]  # a name, or a table with its name and parameters


def entries(texts: Sequence[str], option: str) -> list[Typed]:
    """Parse attacks or defenses from a command line; return their names, with parameters if given, in order. `texts`
    are such as `cpl,gradinv` or `prune:share=.9,at=example`: a comma separates names, and a part with `=` is a further
    parameter of the name before. Raises `BenchError` that begins with the command-line `option`."""
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


def split(typed: Typed) -> tuple[str, dict[str, Any]]:
    """Return (name, parameters) of an attack or defense from the command line. `typed` is an item of the result of
    `entries`: a name, or a mapping with the key `name`."""
    if isinstance(typed, str):
        return typed, {}
    return str(typed["name"]), {key: value for key, value in typed.items() if key != "name"}


def written(name: str, assignments: Sequence[str]) -> str:
    """Return an attack or defense as typed on a command line, such as `prune:share=0.9,at=example`; the reverse of
    `entries`. `name` is the registered name, `assignments` are the parameters, such as `share=0.9`."""
    return f"{name}:{','.join(assignments)}" if assignments else name


def number_or_text(text: str) -> Any:
    """Convert `text` to its value if it is a JSON literal or number (`2`, `.9`, `true`); return any other text
    unchanged."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text
