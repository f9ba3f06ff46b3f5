"""Reconstruction strips of a board: shipped strips, and strips of other runs."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from bench.leaderboard.forms.strips import VICTIMS_NAME, strips
from bench.record.names import entry_text
from bench.record.schema import Record
from bench.reference import store


def strips_of(records: Iterable[Record], folders: Mapping[str, Path], version: str | None) -> dict[str, bytes]:
    """Defense → strip, and `victims`: from the reference, if any, and from records with a run folder by id."""
    records = tuple(records)
    names = (VICTIMS_NAME, *dict.fromkeys(entry_text(record.cell.defense) for record in records))
    return {**(store.strips(version, names) if version else {}), **strips(records, folders)}
