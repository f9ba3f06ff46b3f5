"""What a suite's cells took under the published defenses: how long the same cell takes under another."""

import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from bench.cell import AnyCell, AttackCell, Entry
from bench.record.schema import Record
from bench.registry.claimed import stages

_ANY = Entry(name="any")


def expected(records: Iterable[Record], *, alone: bool = False) -> Callable[[AnyCell], float | None]:
    """CPU seconds of a cell under its defense.  A published setting takes what it took.  Another takes the median over
    the published ones that change an example's gradient as it does, or do not, times what makes the whole suite the
    median of theirs; over all, where there are none.  Those count that shared an equal reading's reconstruction, or to
    which a cascade left nothing.  None: no defense has the cell.

    `alone`: in a run without the undefended rows, where nobody has made the reconstruction of another defense's.
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
    """What each cell takes under the middle one of some settings.

    A sum of medians is less than the median of sums, as a setting that is quick in one cell is slow in another: each
    cell takes its part of the latter.
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
    """Whether it changes one example's gradient, which type-2 shows: by the stage that it acts `at`, or those that it
    claims."""
    return "example" in ((at,) if (at := defense.params.get("at")) else stages(defense.name))


def span(records: Iterable[Record], cells: Iterable[AnyCell], *, alone: bool = False) -> tuple[float, float] | None:
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
