"""Find cascades with wrong readings, which give no worst case over attacks.

In a cascade, an attack cell gets only the readings with an example that earlier attack cells did not reconstruct."""

from collections.abc import Iterable, Iterator

from bench.cell import AttackCell
from bench.record.cascade import came_back, left_by
from bench.record.schema import Record


def torn(records: Iterable[Record]) -> Iterator[tuple[Record, str]]:
    """Yield (record, reason) for each cell (a configured attack run) that got wrong readings (observed updates) in a
    cascade. In a cascade, attacks run in a fixed order, and a cell must get exactly the readings that earlier cells
    left unreconstructed. The reason says in words how `records` contradict this rule."""
    by_id = {record.cell.id: record for record in records}
    for record in by_id.values():
        cell = record.cell
        if not isinstance(cell, AttackCell) or not cell.after or record.attack is None:
            continue
        if absent := [each[:8] for each in cell.after if each not in by_id]:
            yield record, f"cells before it in its cascade are not there: {', '.join(absent)}"
            continue
        left = left_by(cell, (came_back(by_id[each]) for each in cell.after))
        if tuple(number for number, _ in record.attack.numbered()) != left:
            yield record, "it attacked other readings than the cells before it left"
