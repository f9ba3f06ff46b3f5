"""Write the board as Markdown, with untrusted text escaped."""

import re
from collections.abc import Iterable, Sequence

from bench.leaderboard.board import Row
from bench.leaderboard.forms.columns import columns, lines
from bench.leaderboard.forms.notes import LEGEND, notes
from bench.record.groups import grouped


def board(rows: Sequence[Row]) -> str:
    """Return a Markdown table for each condition of the board `rows`, followed by its flags (warnings)."""
    parts = []
    for title, group in grouped(lines(rows), lambda line: line.row.title).items():
        shown = [column for column in columns(line.row for line in group) if "markdown" in column.forms]
        table = [[column.spoken for column in shown]]
        table += [[column.text(line) for column in shown] for line in group]
        head, *body = (f"| {' | '.join(map(cell, texts))} |" for texts in table)
        text = [f"### {cell(title)}", "", head, "|" + "---|" * len(shown), *body, ""]
        parts.append("\n".join([*text, *(f"- {cell(note)}" for note in notes(group))]).rstrip())
    return "\n\n".join([*parts, LEGEND]) + "\n"


def table(lines: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table of `lines`, each a sequence of cell texts; the first line is the head. All text is
    escaped."""
    head, *body = ([cell(text) for text in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *body)) + "\n"


def cell(text: str) -> str:
    """Escape `text` for a cell of a Markdown table, so that no markup, link or column break remains."""
    escaped = re.sub(r"([\\`*_{}\[\]<>|#~])", r"\\\1", " ".join(text.split()))
    # not every renderer accepts a backslash before <
    return escaped.replace(r"\<", "&lt;").replace(r"\>", "&gt;")
