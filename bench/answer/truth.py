"""Cell → truth: victims, examples at the point, gallery.  Drawn in a single place, for the harness only."""

from dataclasses import dataclass
from pathlib import Path

from bench.answer.gallery import Gallery, granted_gallery
from bench.answer.setup import Source, source_of
from bench.answer.victims import Truth, draw_victims, truth_at
from bench.cell import AttackCell
from bench.datasets.base import Data
from bench.points import Point
from bench.points import point as point_of
from bench.record.cascade import left
from bench.trip import Victims


@dataclass(frozen=True, slots=True, kw_only=True)
class CellTruth:
    """A cell's truth, equal for all defenses and attacks."""

    source: Source
    """Data, clients, training round."""
    point: Point
    """Observation point."""
    victims: Victims
    """All examples at the clients behind the readings."""
    examples: Truth
    """Examples behind all readings, at the point."""
    gallery: Gallery | None
    """Granted gallery."""
    rows: tuple[int, ...]
    """Readings to attack: those left by earlier cells in the cascade, or all."""


def draw_truth(cell: AttackCell, data: Data, run: Path) -> CellTruth:
    """The truth for a cell in a run.

    Raises `BenchError` for a missing record earlier in the cascade, `WeightsError` for missing weights, and
    `NotApplicable` for an impossible gallery size.
    """
    return truth_from(cell, source_of(cell, data, run), left(cell, run))


def truth_from(cell: AttackCell, source: Source, rows: tuple[int, ...] | None = None) -> CellTruth:
    """The truth for a cell with the given rows left, by default all."""
    point = point_of(cell.point)
    victims = draw_victims(cell, source, point)
    examples = truth_at(victims, point)
    return CellTruth(
        source=source,
        point=point,
        victims=victims,
        examples=examples,
        gallery=granted_gallery(cell, source.data, examples),
        rows=tuple(range(cell.readings)) if rows is None else rows,
    )
