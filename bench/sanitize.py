"""Texts from strangers, made fit to be shown: one line, printable, short."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

SHORT, LONG, LONGEST = 160, 500, 2000
_MOST_LINES = 100


def sanitize(text: object, most: int = SHORT) -> str:
    """`text` on one line of at most `most` characters.

    What does not print (controls, direction marks, lone surrogates) becomes �; what is long is cut.
    """
    line = str(text)
    line = line if len(line) <= most else line[: most - 1] + "…"
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in line)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, sanitized; its type where it has no message."""
    lines = str(error).strip().splitlines()
    return sanitize(lines[0] if lines else type(error).__name__)


def sanitized_lines(error: BaseException) -> str:
    """The lines of an error's message, each sanitized; at most 100 of them."""
    return "\n".join(sanitize(line, LONGEST) for line in str(error).splitlines()[:_MOST_LINES])


def first_error(error: "ValidationError") -> str:
    """The first error of a validation on one sanitized line: the field, and what is wrong with it."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(sanitize(part, 80) for part in first["loc"])
    return f"{where or 'its text'}: {sanitize(first['msg'].lower())}"
