"""Make untrusted text safe to display: a single, printable, short line."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

SHORT, LONG, LONGEST = 160, 500, 2000
_MOST_LINES = 100


def sanitize(text: object, most: int = SHORT) -> str:
    """Return the untrusted `text` as a single line of at most `most` characters, safe to print. Unprintable characters
    (controls, direction marks, lone surrogates) become �; longer texts are cut."""
    line = str(text)
    line = line if len(line) <= most else line[: most - 1] + "…"
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in line)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, cut and without unprintable characters (`sanitize`). Without a
    message, return the name of the error's type."""
    lines = str(error).strip().splitlines()
    return sanitize(lines[0] if lines else type(error).__name__)


def sanitized_lines(error: BaseException) -> str:
    """Return an error's message, at most 100 lines, each cut and without unprintable characters (`sanitize`)."""
    return "\n".join(sanitize(line, LONGEST) for line in str(error).splitlines()[:_MOST_LINES])


def first_error(error: "ValidationError") -> str:
    """Return the first fault in pydantic's validation `error` as a line of text, `field: reason`, without unprintable
    characters (`sanitize`)."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(sanitize(part, 80) for part in first["loc"])
    return f"{where or 'its text'}: {sanitize(first['msg'].lower())}"
