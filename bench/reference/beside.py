"""A run's records and the reference on a single board.

The reference defines a complete row.  A run's record counts if its cell, defense aside, is in the reference and its
defense is not: cascade cells depend on earlier cells, so cells of a setting are never mixed.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cell import AttackCell
from bench.leaderboard.board import Row, board
from bench.leaderboard.standings import Standing, standings
from bench.record.names import entry_text
from bench.record.schema import Record
from bench.reference import store
from bench.reference.costs import same


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Records of run and reference, their board, and the suite's standings."""

    version: str
    records: tuple[Record, ...]
    rows: tuple[Row, ...]
    standings: tuple[Standing, ...]
    own: tuple[str, ...]
    """Defenses outside the reference."""


def joined(version: str, mine: Iterable[Record] = ()) -> Joined:
    """The reference of this version together with these records."""
    shipped = store.read(version)
    cells = {same(record.cell) for record in shipped}
    known = {entry_text(record.cell.defense) for record in shipped}
    listed = {
        record.cell.id: record
        for record in mine
        if same(record.cell) in cells and entry_text(record.cell.defense) not in known
    }
    attacked = (record.cell for record in listed.values() if isinstance(record.cell, AttackCell))
    own = tuple(dict.fromkeys(entry_text(cell.defense) for cell in attacked))
    records = (*shipped, *listed.values())
    rows = tuple(board(records))
    return Joined(version=version, records=records, rows=rows, standings=tuple(standings(rows, own)), own=own)


def suite_of(folders: Iterable[Path]) -> str | None:
    """Version of the suite behind any of these run folders, if unchanged and with reference results."""
    for folder in folders:
        for path in sorted(folder.glob("suite-*.json")):
            try:
                about = json.loads(path.read_text("utf-8"))
            except (OSError, ValueError):
                continue
            if isinstance(about, dict) and (version := version_of(about)):
                return version
    return None


def version_of(about: Mapping[str, Any]) -> str | None:
    """Version of the reference for a run, from `bench.matrix.suites.ranking`; None without a reference."""
    there = about.get("ranked") is True and about.get("suite") in store.versions()
    return str(about["suite"]) if there else None
