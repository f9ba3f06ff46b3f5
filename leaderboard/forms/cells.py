"""Cells of tables in the terminal."""

from typing import Literal

from rich.text import Text


def below(text: str | Text, *lines: str | Literal[False]) -> Text:
    """Make a terminal table's cell with small print: `text`, and below this text each of `lines` in dim letters. Empty
    lines and False are left out."""
    shown = Text(text) if isinstance(text, str) else text
    return shown.append("".join(f"\n{line}" for line in lines if line), style="dim")


def colour(rate: float | None) -> str:
    """Return the terminal style of a success rate, `rate` in [0, 1]: green below 5 %, yellow from 5 %, red from 50 %;
    dim for None."""
    if rate is None:
        return "dim"
    return "red" if rate >= 0.5 else "yellow" if rate >= 0.05 else "green"
