"""Run-time estimates of suite cells, from the published defenses."""

import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from bench.cell import AnyCell, AttackCell, Entry
from bench.record.schema import Record
from bench.registry.claimed import stages

_ANY = Entry(name="any")


def expected(records: Iterable[Record], *, alone: bool = False) -> Callable[[AnyCell], float | None]:
    """CPU seconds of a cell under its defense; None for a cell unknown to the reference.

    A published setting has its measured time.  Any other setting has the median over published settings of the same
    class (with or without a change of single-example gradients), scaled to the median of their suite totals; over all
    settings if the class is empty.  Counted as well: cells with a shared reconstruction, and cascade cells without
    remaining readings.

    `alone`: for a run without the undefended rows, so no reconstruction is shared with another defense.
    """
    taken: dict[str, dict[str, float]] = {}
    kinds: dict[bool, dict[str, dict[str, float]]] = {False: {}, True: {}}
    for record, seconds in _taken(records, alone=alone):
        defense = record.cell.defense
        its = taken.setdefault(str(defense), {})
        its[same(record.cell)] = seconds
        kinds[_changes_examples(defense)][str(defense)] = its
    of_all = _typical(taken.values())
    typical = {of: _typical(settings.values()) for of, settings in kinds.items()}

    def of_cell(cell: AnyCell) -> float | None:
        key = same(cell)
        known = taken.get(str(cell.defense)) or typical[_changes_examples(cell.defense)] or of_all
        return known.get(key, of_all.get(key))

    return of_cell


def _typical(settings: Collection[Mapping[str, float]]) -> dict[str, float]:
    """Time of each cell under the median setting.

    A sum of medians is less than the median of sums, so each cell is scaled to the median sum.
    """
    of_cell: dict[str, list[float]] = {}
    for each in settings:
        for key, seconds in each.items():
            of_cell.setdefault(key, []).append(seconds)
    medians = {key: statistics.median(each) for key, each in of_cell.items()}
    by_medians = [sum(medians[key] for key in each) for each in settings]
    totals = zip((sum(each.values()) for each in settings), by_medians, strict=True)
    more = statistics.median(total / middle for total, middle in totals if middle > 0) if any(by_medians) else 1.0
    return {key: seconds * more for key, seconds in medians.items()}


def _changes_examples(defense: Entry) -> bool:
    """Whether a defense changes a single example's gradient, by its parameter `at` or its claimed stages."""
    return "example" in ((at,) if (at := defense.params.get("at")) else stages(defense.name))


def span(records: Iterable[Record], cells: Iterable[AnyCell], *, alone: bool = False) -> tuple[float, float] | None:
    """Least and most expected CPU seconds of these cells: for each defense, the range over published settings with
    all cells.

    None if no published setting has all cells.  `alone`: see `expected`.
    """
    wanted: dict[str, dict[str, None]] = {}  # defense → its cells, in their order
    for cell in cells:
        wanted.setdefault(str(cell.defense), {})[same(cell)] = None
    taken: dict[str, dict[str, float]] = {}
    for record, seconds in _taken(records, alone=alone):
        taken.setdefault(str(record.cell.defense), {})[same(record.cell)] = seconds
    least, most = 0.0, 0.0
    for keys in wanted.values():
        whole = [sum(each[key] for key in keys) for each in taken.values() if keys.keys() <= each.keys()]
        if not whole:
            return None
        least, most = least + min(whole), most + max(whole)
    return (least, most) if wanted else None


def _taken(records: Iterable[Record], *, alone: bool) -> Iterator[tuple[Record, float]]:
    by_id = {record.id: record for record in records}
    for record in by_id.values():
        if record.status != "crashed":
            shared = by_id.get(record.cost.reused_from or "")
            elsewhere = shared is not None and shared.cell.defense != record.cell.defense
            spent = shared if alone and shared is not None and elsewhere else record
            yield record, spent.cost.cpu_seconds


def same(cell: AnyCell) -> str:
    """The cell without its defense and without earlier cascade cells, whose ids contain the defense."""
    changes: dict[str, object] = {"defense": _ANY}
    if isinstance(cell, AttackCell):
        changes["after"] = ()
    return cell.model_copy(update=changes).canonical()
