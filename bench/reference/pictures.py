"""Strips of reconstructed images for a board, from the reference results or drawn from run folders."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from bench.leaderboard.forms.strips import VICTIMS_NAME, strips
from bench.record.names import entry_text
from bench.record.schema import Record
from bench.reference import store


def strips_of(records: Iterable[Record], folders: Mapping[str, Path], version: str | None) -> dict[str, bytes]:
    """Return small images for a board (table of defenses), key → WebP: for each defense in `records` a strip of its
    reconstructed images, and with the key `victims` a strip of the true images. The strips of published defenses come
    from the reference results `version` (None: no reference); all others are drawn from the run `folders`, cell id →
    run folder."""
    records = tuple(records)
    names = (VICTIMS_NAME, *dict.fromkeys(entry_text(record.cell.defense) for record in records))
    return {**(store.strips(version, names) if version else {}), **strips(records, folders)}
