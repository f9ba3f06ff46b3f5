"""The strips of pictures of a board: those that ship, and those of runs beside them."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from bench.leaderboard.forms.strips import VICTIMS_NAME, strips
from bench.record.names import entry_text
from bench.record.schema import Record
from bench.reference import store


def strips_of(records: Iterable[Record], folders: Mapping[str, Path], version: str | None) -> dict[str, bytes]:
    """Defense → its strip, and `victims`: of the reference, if any, and of records whose run folder is known by id."""
    records = tuple(records)
    names = (VICTIMS_NAME, *dict.fromkeys(entry_text(record.cell.defense) for record in records))
    return {**(store.strips(version, names) if version else {}), **strips(records, folders)}
