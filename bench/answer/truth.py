"""The true examples of a cell (an experiment): victims, their examples at the interception point, and the gallery.
Attacks never get these values."""

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
    """The victims (observed clients) and true examples of a cell (an experiment), which are equal for all defenses and
    attacks."""

    source: Source
    """Data set, clients and training round from which the true examples are drawn."""
    point: Point
    """Interception point, the attacker's position in the round."""
    victims: Victims
    """The observed clients, with all examples in their batches."""
    examples: Truth
    """True examples behind each reading, without granted examples; reconstructions are scored against these."""
    mates: Truth | None
    """Examples behind each reading that the attacker knows by the grant `mates`: all except the first. None without the
    grant."""
    gallery: Gallery | None
    """Candidates granted to the attacker, which include the true examples; None without the grant."""
    rows: tuple[int, ...]
    """Numbers of the readings to attack: all, or in a cascade the readings with an example not yet leaked."""


def draw_truth(cell: AttackCell, data: Data, run: Path) -> CellTruth:
    """Draw the victims (observed clients) of a cell (an experiment), with their true examples and the gallery
    (candidates granted to the attacker) from the data set `data`. `run` is the run folder, with the records of earlier
    cells and the weights. Raises `BenchError` if an earlier cell in the cascade (attacks one after the other) has no
    record, `WeightsError` for missing weights, and `NotApplicable` for a gallery size that the data set does
    not allow."""
    return truth_from(cell, source_of(cell, data, run), left(cell, run))


def truth_from(cell: AttackCell, source: Source, rows: tuple[int, ...] | None = None) -> CellTruth:
    """Draw the victims (observed clients) of a cell (an experiment) from `source`, with their true examples and the
    gallery (candidates granted to the attacker). `rows` are the numbers of the readings (observed updates) to attack;
    None takes all. Raises `NotApplicable` for a gallery size that the data set does not allow."""
    point = point_of(cell.point)
    victims = draw_victims(cell, source, point)
    examples, mates = truth_at(victims, point), None
    if cell.grants.mates:
        examples, mates = examples.split_at(1)
    return CellTruth(
        source=source,
        point=point,
        victims=victims,
        examples=examples,
        mates=mates,
        gallery=granted_gallery(cell, source.data, examples),
        rows=tuple(range(cell.readings)) if rows is None else rows,
    )
