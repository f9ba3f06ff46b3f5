"""A run's records and the reference results on a single board.

A run's record is added if the reference has the same cell, but only for other defenses.  All cells of a defense thus
come from the run, or all from the reference.  A row is complete if it has every cell in the reference."""

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
    """Records of a run together with the shipped reference results, on a single board (table of defenses)."""

    version: str
    """Suite version of the reference."""
    records: tuple[Record, ...]
    """Records of the reference and the run."""
    rows: tuple[Row, ...]
    """Rows of the board, one for each defense (with its parameters) and condition (data, model, weights, setting)."""
    standings: tuple[Standing, ...]
    """Ranking of the defenses over all conditions."""
    own: tuple[str, ...]
    """Defenses that only the run has."""


def joined(version: str, mine: Iterable[Record] = ()) -> Joined:
    """Rank a run's new defenses among the published defenses: return the board (table of defenses) of the suite
    `version` (a fixed set of experiments), from the shipped reference results and the run's records `mine`. A record in
    `mine` counts if its defense is not in the reference, and the reference has the same cell (experiment) with another
    defense."""
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
    """Return the version of the suite (a fixed set of experiments) in the first of the run `folders` that ran an
    unmodified suite with reference results; None without such a folder."""
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
    """Return the suite version (a suite is a fixed set of experiments) with whose reference results a run can be
    compared; `about` is the content of the run's suite file. None if the run is modified, if the suite has no reference
    results, or for the suite `attacks`, which ranks attacks and not defenses."""
    there = about.get("ranked") is True and about.get("suite") in store.of_defenses(store.versions())
    return str(about["suite"]) if there else None
