"""Truth and reconstruction from a row's most successful attack, for the HTML page and the figure.

The row's first cell with this attack and point is shown, so examples are not selected by success."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from bench.cell import AttackCell
from bench.errors import RecordError
from bench.kinds.base import Kind
from bench.leaderboard.board import Row
from bench.pictures.grid import Floats
from bench.pictures.recorded import tokens
from bench.pictures.thumbnails import MOST, TOTAL, Thumbnail, fitting
from bench.pictures.words import Words, words
from bench.record.names import attack_name
from bench.record.store import read, read_arrays, record_path

Runs = Mapping[str, Path]  # cell id → the run folder of its record
_TAGS = 40  # bytes of a token's HTML elements


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """True examples and their reconstructions by an attack, loaded for a picture or, for texts, a table of words."""

    truth: Floats
    """(reading, example, *shape): true examples."""
    guess: Floats
    """(reading, example, *shape): reconstructions in the same order."""
    kind: Kind
    """Kind of data."""
    vocabulary: tuple[str, ...]
    """Token of each id, for texts; empty for other kinds of data."""

    @property
    def texts(self) -> list[Words]:
        """Up to eight true texts with their reconstructions, as words; empty for images and tables."""
        return words(self.truth, self.guess, self.vocabulary) if self.vocabulary else []


def of_best(row: Row, runs: Runs, point: str) -> Shown | None:
    """Load the reconstructions of a defense's most successful attack at an interception point, and the true examples.
    Return None for missing or damaged records or arrays; the page then omits the image.

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
                if not same:
                    return None
                vocabulary = tokens(runs[cell_id], record)
                return Shown(truth=truth, guess=guess, kind=record.attack.data_kind, vocabulary=vocabulary)
        except (RecordError, KeyError):
            return None
    return None


def thumbnails(
    rows: Sequence[Row], runs: Runs, *, private: bool = False
) -> dict[tuple[str, str], Thumbnail | list[Words]]:
    """Return a small image of reconstructions for each row, or texts in words: a map from (condition key, defense). It
    shows the most successful attack at the interception point with the highest success rate.

    - `rows`: board rows; more rows mean smaller images, and fewer texts.
    - `runs`: map from the id of a cell (a configured run) to its run folder.
    - `private`: True also shows rows with private data."""
    limit = min(MOST, TOTAL // max(1, len(rows)))
    made: dict[tuple[str, str], Thumbnail | list[Words]] = {}
    for row in rows:
        shown = of_best(row, runs, row.worst.point) if row.worst and (private or not row.private) else None
        if shown is None:
            continue
        if texts := shown.texts:
            made[row.key, row.defense] = _fitting(texts, limit)
        elif (thumbnail := fitting(shown.truth, shown.guess, shown.kind, limit)) is not None:
            made[row.key, row.defense] = thumbnail
    return made


def _fitting(texts: list[Words], limit: int) -> list[Words]:
    """Return the first texts that need at most `limit` bytes in a page, at least one."""
    sizes = accumulate(sum(len(token) + _TAGS for token in (*text.truth, *text.guess)) for text in texts)
    return texts[: max(1, sum(size <= limit for size in sizes))]
