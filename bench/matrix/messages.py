"""Errors in a matrix file: collected while reading, and reported together, a line each.

`Errors.add_validation` turns pydantic's errors into lines: the key in the file, the mistake, and the nearest valid name
or an example."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from bench.errors import MatrixError

NAME_LENGTH = 200
LINE_LENGTH = 1000
MOST_LINES = 200
# pydantic's name of an error → what was expected, and an example of it.
_TYPES = {
    "list_type": ("a list", "{name} = […]"),
    "model_type": ("a table", "{{ key = value }}"),
    "int_type": ("a whole number", "1"),
    "float_type": ("a number", "0.5"),
    "string_type": ("text", '"…"'),
    "bool_type": ("true or false", "true"),
}
# Keys that have no default, with an example.
REQUIRED = {
    "dataset": '["digits"]',
    "model": '["dlg-lenet"]',
    "attack": '["dlg"]',
    "point": '["type-2"]',
    "rounds": "[20]",
    "source": '"paper, table"',
}


class Wrong(ValueError):
    """Error for a wrong value in a matrix file (a run's experiments), raised by pydantic validators; each argument is a
    line with the mistake and a remedy."""


class Rows(list[Any]):
    """List of items from a matrix file (a run's experiments), with the place of each item in the file: `keys` holds an
    item's key, for error messages. Items from the same block have the same key."""

    def __init__(self, rows: Iterable[tuple[str, Any]]) -> None:
        pairs = list(rows)
        super().__init__(row for _, row in pairs)
        self.keys = [key for key, _ in pairs]


class Errors:
    """Collector of the mistakes in a matrix file (a run's experiments), so that the user sees all mistakes together, as
    lines `FILE: key: mistake; remedy`."""

    def __init__(self, file: str) -> None:
        self.file = printable(file)
        self._lines: dict[str, None] = {}  # a set that keeps the order

    def add(self, key: str, what: str, remedy: str = "") -> None:
        """Add the line `FILE: key: what; remedy`: the `key` in the file, the mistake, and the step that mends it."""
        line = ": ".join(part for part in (self.file, key, what) if part)
        self._lines[printable(f"{line}; {remedy}" if remedy else line, LINE_LENGTH)] = None

    def add_validation(self, error: ValidationError, content: Any, model: type[BaseModel]) -> None:
        """Add a line for each error that pydantic found in the `content` of a matrix file (a run's experiments),
        checked against the pydantic class `model`."""
        for item in error.errors(include_url=False):
            for message in _messages(item, content, model):
                self.add(*message)

    def error(self) -> MatrixError:
        """Return the collected lines as a `MatrixError`; a count replaces the lines after the first `MOST_LINES`."""
        lines = list(self._lines)
        if len(lines) > MOST_LINES:
            lines[MOST_LINES:] = [f"{self.file}: {len(lines) - MOST_LINES} more errors; mend these first"]
        return MatrixError("\n".join(lines))

    def raise_any(self) -> None:
        """Raise `MatrixError` with the collected lines, if there are any."""
        if self._lines:
            raise self.error()


def printable(text: str, length: int = NAME_LENGTH) -> str:
    """Return `text` without control characters, shortened in the middle to about `length` characters."""
    return _cut("".join(c if c.isprintable() else ascii(c)[1:-1] for c in _cut(text, length)), length)


def _cut(text: str, length: int) -> str:
    tail = length // 3
    return text if len(text) <= length else f"{text[: length - tail - 1]}…{text[-tail:]}"


def quoted(value: Any) -> str:
    """Return `value` as quoted text for a message, at most `NAME_LENGTH` characters."""
    text = repr(value[: NAME_LENGTH + 1] if isinstance(value, str) else value)
    return text if len(text) <= NAME_LENGTH else f"{text[: NAME_LENGTH - 1]}…"


def nearest(name: str, known: Iterable[str], what: str = "there are") -> str:
    """Return a remedy for an unknown `name` as text, for an error message: "did you mean" with the most similar name in
    `known`. If none is similar, the text is `what` (such as "there are") with all known names."""
    names = sorted(known)
    near = difflib.get_close_matches(name[:NAME_LENGTH], names, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"{what} {', '.join(names) or 'none'}"


def expected(what: str, value: Any, example: str) -> str:
    """Return an error message: `what` was expected, `value` was given, and `example` is a valid text."""
    return f"expected {what}, got {quoted(value)}; write e.g. {example}"


def lacks(name: str) -> tuple[str, str]:
    """Return (mistake, remedy), two texts for the missing key `name` of a matrix file; the remedy shows an example of a
    value. For a line of `Errors`."""
    return f"lacks {name}", f"add e.g. {name} = {REQUIRED.get(name, '…')}"


def _messages(item: Mapping[str, Any], content: Any, model: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    loc, kind, value = item["loc"], item["type"], item["input"]
    key, (owner, name) = _key(content, loc), _field(model, loc)
    if kind == "value_error":
        yield from ((key, str(line)) for line in item["ctx"]["error"].args)
    elif kind == "extra_forbidden":
        yield key, "unknown key", nearest(name, owner.model_fields, "the keys here are")
    elif kind == "missing":
        yield _key(content, loc[:-1]), *lacks(name)
    elif kind == "literal_error" and isinstance(value, str):
        allowed = re.findall(r"'([^']*)'", item["ctx"]["expected"])
        yield key, f"unknown {name} {quoted(value)}", nearest(value, allowed)
    elif kind == "too_short":
        yield key, "empty", "give at least one value, or leave the key out"
    elif kind == "too_long":
        most = item["ctx"]["max_length"]
        yield key, f"{len(value)} entries", f"at most {most} are allowed; split the matrix"
    elif kind in _TYPES:
        what, example = _TYPES[kind]
        field = owner.model_fields.get(name)
        examples = field.examples if field is not None else None
        yield key, expected(what, value, str(examples[0]) if examples else example.format(name=name))
    else:
        what = "out of range" if item.get("ctx", {}).keys() & {"ge", "gt", "le", "lt"} else "wrong value"
        must = item["msg"].replace("Input should be", "must be")
        yield key, f"{what}, got {quoted(value)}", f"it {must}"


def _key(content: Any, loc: Sequence[str | int]) -> str:
    """Return the key in the file for pydantic's error location `loc`, such as `axes.attack[0]`; `content` is the file's
    content."""
    key = ""
    for part in loc:
        if isinstance(part, str):
            key += f".{printable(part)}"
            content = content.get(part) if isinstance(content, dict) else None
        elif isinstance(content, list):  # else the number stands for a list of one
            key += content.keys[part] if isinstance(content, Rows) else f"[{part}]"
            content = content[part]
    return key.removeprefix(".")


def _field(model: type[BaseModel], loc: Sequence[str | int]) -> tuple[type[BaseModel], str]:
    names = [part for part in loc if isinstance(part, str)]
    for name in names[:-1]:
        field = model.model_fields.get(name)
        model = (_model(field.annotation) if field else None) or model
    return model, names[-1] if names else ""


def _model(annotation: Any) -> type[BaseModel] | None:
    """Return the pydantic model inside a type annotation, such as `Train` for `list[Train] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model, get_args(annotation))), None)
