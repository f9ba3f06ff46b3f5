"""Faults of a matrix file: collected while it is read, told all at once, one line each."""

import difflib
from collections.abc import Iterable
from typing import Any

from bench.errors import MatrixError

NAME_LENGTH = 200
LINE_LENGTH = 1000
MOST_LINES = 200


def escaped(text: str, length: int = NAME_LENGTH) -> str:
    """`text` without control characters, cut in the middle where it is longer than `length`."""
    return _cut("".join(c if c.isprintable() else ascii(c)[1:-1] for c in _cut(text, length)), length)


def _cut(text: str, length: int) -> str:
    if len(text) <= length:
        return text
    tail = length // 3
    return f"{text[: length - tail - 1]}…{text[-tail:]}"


def quoted(value: Any) -> str:
    """A value from the file as it is shown in a message, at most `NAME_LENGTH` characters."""
    text = repr(value[: NAME_LENGTH + 1] if isinstance(value, str) else value)
    return text if len(text) <= NAME_LENGTH else f"{text[: NAME_LENGTH - 1]}…"


def nearest(name: str, known: Iterable[str], what: str = "there are") -> str:
    """The remedy for an unknown name: the nearest right one, or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name[:NAME_LENGTH], names, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"{what} {', '.join(names) or 'none'}"


class Faults:
    """The faults found so far in one file; each line is `FILE: key: what; remedy`."""

    def __init__(self, file: str) -> None:
        self.file = escaped(file)
        self._lines: dict[str, None] = {}  # a set that keeps the order

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, key: str, what: str, remedy: str = "") -> None:
        line = ": ".join(part for part in (self.file, key, what) if part)
        self._lines[escaped(f"{line}; {remedy}" if remedy else line, LINE_LENGTH)] = None

    def error(self) -> MatrixError:
        """The error that lists every fault."""
        lines = list(self._lines)
        if len(lines) > MOST_LINES:
            lines[MOST_LINES:] = [f"{self.file}: {len(lines) - MOST_LINES} more faults; mend these first"]
        return MatrixError("\n".join(lines))

    def settle(self) -> None:
        """Raise `MatrixError` if there is a fault."""
        if self._lines:
            raise self.error()
