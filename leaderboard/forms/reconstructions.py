"""Truth and reconstruction from a row's most successful attack, for the HTML page and the figure.

The row's first cell with this attack and point is shown, so images are not selected by success."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.cell import AttackCell
from bench.errors import RecordError
from bench.kinds.base import Kind
from bench.leaderboard.board import Row
from bench.pictures.grid import Floats
from bench.pictures.thumbnails import MOST, TOTAL, Thumbnail, fitting
from bench.record.names import attack_name
from bench.record.store import read, read_arrays, record_path

Runs = Mapping[str, Path]  # cell id → the run folder of its record


def of_best(row: Row, runs: Runs, point: str) -> tuple[Floats, Floats, Kind] | None:
    """Load the reconstructions of a defense's most successful attack at an interception point, and the true examples.
    Return (truth, reconstruction, kind of data), both arrays (reading, example, *shape). Return None for missing or
    damaged records or arrays; the page then omits the image.

    - `row`: the defense's board row; `point`: name of the interception point.
    - `runs`: map from the id of a cell (a configured run) to its run folder."""
    at = row.points.get(point)
    best = at.best.attack if at and at.best else None
    for cell_id in row.cells if best is not None else ():
        try:
            record = read(record_path(runs[cell_id], cell_id))
            cell = record.cell
            mine = isinstance(cell, AttackCell) and cell.point == point and best == attack_name(cell)
            if mine and record.attack is not None and record.arrays is not None:  # a cascade may leave no reading
                arrays = read_arrays(runs[cell_id], record.arrays)
                truth, guess = arrays["truth"], arrays["reconstruction"]
                same = truth.shape == guess.shape and truth.ndim >= 3
                return (truth, guess, record.attack.data_kind) if same else None
        except (RecordError, KeyError):
            return None
    return None


def thumbnails(rows: Sequence[Row], runs: Runs, *, private: bool = False) -> dict[tuple[str, str], Thumbnail]:
    """Return a small image of reconstructions for each row: a map from (condition key, defense) to the image. It shows
    the most successful attack at the interception point with the highest success rate.

    - `rows`: board rows; more rows mean smaller images.
    - `runs`: map from the id of a cell (a configured run) to its run folder.
    - `private`: True also shows rows with private data."""
    limit = min(MOST, TOTAL // max(1, len(rows)))
    made = {}
    for row in rows:
        arrays = of_best(row, runs, row.worst.point) if row.worst and (private or not row.private) else None
        thumbnail = fitting(*arrays, limit) if arrays else None
        if thumbnail is not None:
            made[row.key, row.defense] = thumbnail
    return made
