"""What a suite's cells took under the published defenses: how long the same cell takes under another."""

import statistics
from collections.abc import Callable, Iterable, Iterator

from bench.cell import AnyCell, AttackCell, Entry
from bench.record.schema import Record

_ANY = Entry(name="any")


def expected(records: Iterable[Record], *, alone: bool = False) -> Callable[[AnyCell], float | None]:
    """CPU seconds of a cell: the median over the defenses that have the same one, those among them that shared an
    equal reading's reconstruction, or to which a cascade left nothing.  None: no defense has it.

    `alone`: in a run without the undefended rows, where nobody has made the reconstruction of another defense's.
    """
    taken: dict[str, list[float]] = {}
    for record, seconds in _taken(records, alone=alone):
        taken.setdefault(same(record.cell), []).append(seconds)
    medians = {key: statistics.median(each) for key, each in taken.items()}
    return lambda cell: medians.get(same(cell))


def span(
    records: Iterable[Record], cells: Iterable[AnyCell], *, alone: bool = False
) -> tuple[float, float] | None:
    """The least and the most CPU seconds that these cells can be expected to take: each defense's, what one published
    setting took that has all of them; None where none has.  `alone`: see `expected`."""
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
    """The cell but for its defense, and for what came before it in its cascade, which has the defense's ids."""
    changes: dict[str, object] = {"defense": _ANY}
    if isinstance(cell, AttackCell):
        changes["after"] = ()
    return cell.model_copy(update=changes).canonical()
