"""Texts from strangers, made fit to be shown: one line, printable, short."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

SHORT, LONG, LONGEST = 160, 500, 2000
_MOST_LINES = 100


def harmless(text: object, most: int = SHORT) -> str:
    """`text` on one line: what does not print (controls, direction marks, lone surrogates) becomes �, and
    what is long is cut."""
    shown = str(text)
    cut = shown if len(shown) <= most else shown[: most - 1] + "…"
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in cut)


def first_line(error: BaseException) -> str:
    """What an error says, harmless and short; its type where it says nothing."""
    lines = str(error).strip().splitlines()
    return harmless(lines[0] if lines else type(error).__name__)


def lines(error: BaseException) -> str:
    """All that an error says, line by line, harmless; no more lines than anybody reads."""
    return "\n".join(harmless(line, LONGEST) for line in str(error).splitlines()[:_MOST_LINES])


def fault(error: "ValidationError") -> str:
    """The first fault, in one harmless line: where, and what."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(harmless(part, 80) for part in first["loc"])
    return f"{where or 'its text'}: {harmless(first['msg'].lower())}"
