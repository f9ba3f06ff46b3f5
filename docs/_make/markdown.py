"""Markdown shared by the makers: first line, tables, paragraphs, escapes."""

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from bench.record.schema import Record

HEAD = "<!-- Written by docs/generate.py: edit {sources}, and run it again. -->\n\n"
COMMAND = "python docs/generate.py --all FOLDER"  # writes the documents that are not in git


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells may hold markup, `|` is escaped."""
    escaped = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    first, *others = (f"| {' | '.join(line)} |" for line in (head, *escaped))
    return "\n".join([first, f"|{'---|' * len(head)}", *others]) + "\n"


def paragraph(text: str) -> str:
    """Text wrapped at 120 characters."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False) + "\n"


def plain(text: str) -> str:
    """Text with Markdown marks escaped."""
    return re.sub(r"([*_|<])", r"\\\1", text)


def title(page: str) -> tuple[str, str]:
    """A page's title and the text below."""
    first, _, rest = re.sub(r"\A<!--.*?-->\s*", "", page).removeprefix("# ").partition("\n\n")
    return first, rest


def source(version: str, records: Sequence[Record], others: Mapping[str, str] | None = None) -> str:
    """The reference results behind a page; `others`: preset → link, for presets whose records count too."""
    if not records:
        return "There are no reference results yet: every verdict is open.\n"
    also = f"; among them the runs of {', '.join(others.values())} on the same examples" if others else ""
    return f"Reference results: `{version}`, {len(records)} records{also}.\n"
