"""Plain text columns that fit the terminal; the `list`, `describe` and `doctor` commands print by it."""

import shutil
import textwrap
from collections.abc import Sequence

import click

_GAP = "  "


def width() -> int:
    """Columns of the terminal, between 40 and 140; 100 where the output is no terminal."""
    return min(max(shutil.get_terminal_size((100, 24)).columns, 40), 140)


def columns(heads: Sequence[str], rows: Sequence[Sequence[str]], total: int) -> str:
    """A table of at most `total` columns: the widest columns are wrapped, empty ones left out."""
    kept = [i for i in range(len(heads)) if any(row[i] for row in rows)]
    table = [[row[i] for i in kept] for row in rows]
    heads = [heads[i] for i in kept]
    widths = [max(map(len, column)) for column in zip(heads, *table, strict=True)]
    room = total - len(_GAP) * (len(widths) - 1)
    while sum(widths) > room and max(widths) > 8:
        widths[widths.index(max(widths))] -= 1
    lines = [click.style(line, bold=True) for line in _row(heads, widths)]
    for row in table:
        lines += _row(row, widths)
    return "\n".join(lines)


def _row(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    wrapped = [textwrap.wrap(cell, size) or [""] for cell, size in zip(cells, widths, strict=True)]
    height = max(map(len, wrapped), default=0)
    return [
        _GAP.join(
            (cell[line] if line < len(cell) else "").ljust(size)
            for cell, size in zip(wrapped, widths, strict=True)
        ).rstrip()
        for line in range(height)
    ]
