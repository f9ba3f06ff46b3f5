"""Tables for a terminal, whose long names break after a comma or before a parenthesis."""

import re
from collections.abc import Iterator
from typing import Any

from rich import table
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.containers import Lines
from rich.text import Text

_WORD = re.compile(r"\S+")
_PIECE = re.compile(r"\([^,:/(]*[,:/]*|[^,:/(]+[,:/]*|[,:/]+")
_SMALLER = re.compile(r"[^-=]+[-=]*|[-=]+")


class Table(table.Table):
    """A terminal table that breaks long names readably: a word that is longer than its column breaks after a comma,
    colon or slash, or before a parenthesis; a piece that is too long breaks after a hyphen or an equals sign, then
    anywhere."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        super().add_row(*map(_breaking, cells), **options)


class _Breaking(Text):
    def wrap(self, console: Console, width: int, **options: Any) -> Lines:
        if options.get("no_wrap"):
            return super().wrap(console, width, **options)
        lines = Lines()
        for line in self.split(allow_blank=True):
            for part in line.divide(_breaks(line.plain, width)):
                lines.extend(part.wrap(console, width, **options))
        return lines


def _breaking(cell: RenderableType | None) -> RenderableType | None:
    text = Text.from_markup(cell, emoji=False) if isinstance(cell, str) else cell
    if not isinstance(text, Text):
        return text
    return _Breaking(text.plain, text.style, spans=text.spans, justify=text.justify, overflow=text.overflow)


def _breaks(line: str, width: int) -> list[int]:
    """Return the offsets at which words longer than `width` break."""
    breaks = []
    for word in _WORD.finditer(line):
        if cell_len(word[0]) <= width:
            continue
        used, at = 0, word.start()
        for piece in _pieces(word[0], width):
            length = cell_len(piece)
            if used and used + length > width:
                breaks.append(at)
                used = 0
            used += length
            at += len(piece)
    return breaks


def _pieces(word: str, width: int) -> Iterator[str]:
    for piece in _PIECE.findall(word):
        yield from _SMALLER.findall(piece) if cell_len(piece) > width else (piece,)
