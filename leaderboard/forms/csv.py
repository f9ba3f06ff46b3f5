"""Write the board as CSV, with unrounded figures."""

import csv
import io
from collections.abc import Sequence
from typing import Any

from bench.leaderboard.board import Row
from bench.leaderboard.forms.columns import columns


def board(rows: Sequence[Row]) -> str:
    """Return the board `rows` as CSV, with unrounded figures. Text that begins like a spreadsheet formula gets an
    apostrophe in front."""
    shown = [column for column in columns(rows) if "csv" in column.forms]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in shown])
    writer.writerows([_no_formula(column.value(row)) for column in shown] for row in rows)
    return text.getvalue()


def _no_formula(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t")) else value
