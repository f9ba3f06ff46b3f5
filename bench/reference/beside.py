"""Records of one's own beside the reference: who stands on one board, and what counts of each.

What ships says what a complete row is.  Of one's own records those count whose cell some shipped setting has, too,
but for its defense, under defenses that do not ship: a cell of a cascade depends on those before it, so that the cells
of a setting are never mixed.
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
    """The records of a run and of the reference, their board, and the suite's standings; `own` are the defenses that
    the reference lacks."""

    version: str
    records: tuple[Record, ...]
    rows: tuple[Row, ...]
    standings: tuple[Standing, ...]
    own: tuple[str, ...]


def joined(version: str, mine: Iterable[Record] = ()) -> Joined:
    """The reference of this version with these records beside it."""
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
    """The version of the suite that some of these run folders ran as it was shipped, where it has reference results."""
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
    """The reference results that a run stands beside, by what `bench.matrix.suites.ranking` says of it; None: none."""
    there = about.get("ranked") is True and about.get("suite") in store.versions()
    return str(about["suite"]) if there else None
