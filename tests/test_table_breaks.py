"""Long names in terminal tables break at commas and parentheses, in every table."""

from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from bench.leaderboard.forms.tables import Table

NAME = "quantile(at=client,clip=0.5,correction=none,sigma=0.3162)"


def printed(cell: str | Text, width: int) -> str:
    """A table of one cell, as a terminal of `width` columns shows it."""
    console = Console(width=width)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(overflow="fold")
    table.add_row(cell)
    with console.capture() as said:
        console.print(table)
    return said.get()


@pytest.mark.parametrize("width", [18, 24, 40])
@pytest.mark.parametrize("styled", [False, True])
def test_a_long_name_breaks_at_its_parameters(width: int, styled: bool) -> None:
    said = printed(Text(NAME, style="bold") if styled else NAME, width)
    lines = [line.strip() for line in said.splitlines()]
    assert "".join(lines) == NAME and len(lines) > 1
    assert all(line.endswith(",") or after.startswith("(") for line, after in pairwise(lines))


def test_a_name_without_parameters_breaks_at_its_hyphen() -> None:
    said = printed("secure-aggregation", 17)
    assert said.split() == ["secure-", "aggregation"]


def test_other_text_is_unchanged() -> None:
    said = printed("two words\n\nabcdefghijklmnop", 12)
    assert [line.strip() for line in said.splitlines()] == ["two words", "", "abcdefghijkl", "mnop"]


def test_every_terminal_table_is_such_a_table() -> None:
    root = Path(__file__).parent.parent
    files = [file for folder in ("bench", "leaderboard") for file in (root / folder).rglob("*.py")]
    others = [file.name for file in files if "from rich.table import" in file.read_text("utf-8")]
    assert others == []
