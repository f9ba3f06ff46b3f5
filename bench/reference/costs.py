"""Expected run times of suite cells, from the shipped records of published defenses."""

import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from bench.cell import AnyCell, AttackCell, Entry
from bench.record.schema import Record
from bench.registry.claimed import stages

_ANY = Entry(name="any")


def expected(records: Iterable[Record], *, alone: bool = False) -> Callable[[AnyCell], float | None]:
    """Return a function from a cell (an experiment of a suite) to its expected CPU seconds, computed from the shipped
    `records`; the function returns None for a cell without shipped records.

    - `alone`: True for a run without undefended cells. Such a run computes every reconstruction itself. False: a
      reconstruction that a shipped run reused from an undefended cell costs only the reuse.

    A defense with records and equal parameters has its measured times. For another defense, a cell's time is the median
    over the defenses with records of the same type, scaled so that the total time is the median total time. The two
    types are defenses that change single-example gradients, and all others; without records of the type, all defenses
    count."""
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
    """Return each cell's median time over the settings, scaled so that the sum equals the settings' median sum. Without
    the scale, the sum of medians would be less than the median of sums."""
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
    """Return whether a defense changes single-example gradients, by its parameter `at` or its `stages`."""
    return "example" in ((at,) if (at := defense.params.get("at")) else stages(defense.name))


def span(records: Iterable[Record], cells: Iterable[AnyCell], *, alone: bool = False) -> tuple[float, float] | None:
    """Return a range for the time of a run of a suite (a fixed set of experiments) with a new defense: the least and
    the greatest CPU seconds that published defenses took for the same cells.

    - `records`: records of the published defenses.
    - `cells`: the run's cells (experiments).
    - `alone`: True for a run without undefended cells; reconstructions that published defenses reused from undefended
      cells then count with their full time.

    None if no published defense has records of all cells of a defense."""
    wanted: dict[str, dict[str, None]] = {}  # defense → cells, in order
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
    """Return a key (text) by which a new defense's cell (experiment) finds the published defenses' results and times.
    Cells that differ only in the defense, or in the earlier attacks of a cascade, have equal keys."""
    changes: dict[str, object] = {"defense": _ANY}
    if isinstance(cell, AttackCell):
        changes["after"] = ()
    return cell.model_copy(update=changes).canonical()


def expected_of_attacks(records: Iterable[Record]) -> Callable[[AnyCell], float | None]:
    """Return a function from a cell (experiment) of the suite `attacks` to its expected CPU seconds, computed from
    the shipped `records`. The function returns None for an unpublished condition.

    A published attack has its measured time. Another attack gets the median over the published attacks that read the
    same gradients. A second sample of attacked examples takes as long as the published sample."""
    taken: dict[str, float] = {}
    attacks: dict[str, list[float]] = {}
    for record in records:
        if record.status == "done" and isinstance(record.cell, AttackCell):
            taken[_published(record.cell).canonical()] = record.cost.cpu_seconds
            attacks.setdefault(any_attack(record.cell), []).append(record.cost.cpu_seconds)

    def of_cell(cell: AnyCell) -> float | None:
        if not isinstance(cell, AttackCell):
            return None
        others = attacks.get(any_attack(cell))
        return taken.get(_published(cell).canonical(), statistics.median(others) if others else None)

    return of_cell


def any_attack(cell: AttackCell) -> str:
    """Return a key (text) by which a new attack's cell (experiment) finds the published attacks' results and times.
    Cells that differ only in the attacker or in the sample of attacked examples have equal keys."""
    return _published(cell).model_copy(update={"attack": _ANY, "knowledge": "plain", "after": ()}).canonical()


def _published(cell: AttackCell) -> AttackCell:
    return cell.model_copy(update={"victims": None})
