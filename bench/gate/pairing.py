"""Pairs of a baseline's cells (experiments) and a run's cells, for a comparison: the same experiment before and after a
change.

Most pairs have equal ids. A changed default, a renamed parameter or a new parameter gives a cell another id. Such cells
pair if they are equal except for parameters that the matrix file does not set: both name the same entries, and the set
parameters have equal values."""

import json
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

from bench.cell import ENTRIES, AnyCell, AttackCell, CheckpointWeights, Entry
from bench.matrix.read import Asked
from bench.record.names import value_text

_ABSENT = object()
NO_WORDS: Asked = {}  # of a run whose matrix is unknown: cells pair by id only


def partners(old: Mapping[str, AnyCell], new: Mapping[str, AnyCell], asked: Asked) -> dict[str, str]:
    """Pair each cell (an experiment) of a baseline with the same cell of a later run, also if a changed default gave it
    another id. Return a map from ids in `old` to ids in `new`; cells without a partner are left out. Two cells pair if
    they are equal except for parameters that the run's matrix file does not set.

    - `old`, `new`: id → cell, of the baseline and of the run.
    - `asked`: parameters that the matrix file sets: (axis, entry with all its parameters as text) → names of the set
      parameters, a tuple for each way in which the file writes the entry. An entry is an attack, defense, data set or
      model."""
    found = {id_: id_ for id_ in old.keys() & new.keys()}
    earlier = {id_: id_ for id_ in found}  # id of a later cell → id of its partner
    waiting: dict[str, list[str]] = {}
    for id_, cell in old.items():
        if id_ not in found:
            waiting.setdefault(_shape(cell, {}), []).append(id_)
    for id_, cell in sorted(new.items(), key=_rank) if waiting else ():
        if id_ not in found:
            fitting = [one for one in waiting.get(_shape(cell, earlier), ()) if _fits(old[one], cell, asked)]
            if len(fitting) == 1 and fitting[0] not in found:
                found[fitting[0]], earlier[id_] = id_, fitting[0]
    # The value of a changed default may already be another cell of the matrix: both earlier cells have this partner, if
    # the matrix spells the later cell in as many ways.
    shapes: dict[str, list[str]] = {}
    for id_, cell in new.items() if len(found) < len(old) else ():
        shapes.setdefault(_shape(cell, earlier), []).append(id_)
    claims: dict[str, list[str]] = {}
    for shape, ids in waiting.items():
        for one in (one for one in ids if one not in found):
            fitting = [id_ for id_ in shapes.get(shape, ()) if _fits(old[one], new[id_], asked)]
            if len(fitting) == 1:
                claims.setdefault(fitting[0], []).append(one)
    for id_, ones in claims.items():
        if len(ones) + (id_ in earlier) <= _spellings(new[id_], asked):
            found |= dict.fromkeys(ones, id_)
    return found


def is_asked_for(cell: AnyCell, asked: Asked) -> bool:
    """Return whether the run's matrix file still asks for the cell (an experiment), so that old records in the run
    folder are not compared. The result is False if the file has an entry of the cell (its attack, defense, data set or
    model) only with other parameters, as after a change of defaults.

    `asked` holds the parameters that the matrix file sets: (axis, entry with all its parameters as text) → names of the
    set parameters, a tuple for each way in which the file writes the entry."""
    named = {(axis, text.partition("(")[0]) for axis, text in asked}
    return not any(
        (axis, entry.name) in named and (axis, str(entry)) not in asked for axis, entry, _ in _entries(cell, cell)
    )


def differences(old: AnyCell, new: AnyCell) -> Iterator[str]:
    """Yield a line for each entry (attack, defense, data set or model) whose parameters differ between the paired cells
    (experiments) `old` and `new`, such as `my-round: step 0.3 → 0.0001`."""
    for _, then, now in _entries(old, new):
        if then.params != now.params:
            yield f"{then.name}: {', '.join(_changes(then.params, now.params))}"


def _changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    gone, fresh = sorted(then.keys() - now.keys()), sorted(now.keys() - then.keys())
    for name in sorted(then.keys() & now.keys()):
        if then[name] != now[name]:
            yield f"{name} {value_text(then[name])} → {value_text(now[name])}"
    if len(gone) == len(fresh) == 1:
        yield f"{gone[0]}={value_text(then[gone[0]])} → {fresh[0]}={value_text(now[fresh[0]])}"
        return
    yield from (f"no {name} (was {value_text(then[name])})" for name in gone)
    yield from (f"new {name}={value_text(now[name])}" for name in fresh)


def _entries(old: AnyCell, new: AnyCell) -> Iterable[tuple[str, Entry, Entry]]:
    axes = (axis for axis in ENTRIES if hasattr(old, axis))
    return ((axis, getattr(old, axis), getattr(new, axis)) for axis in axes)


def _fits(old: AnyCell, new: AnyCell, asked: Asked) -> bool:
    """Return whether the words which gave the cell `new` also describe the cell `old`."""
    return all(
        then.params == now.params
        or any(
            all(then.params.get(name, _ABSENT) == now.params[name] for name in written)
            for written in asked.get((axis, str(now)), ())
        )
        for axis, then, now in _entries(old, new)
    )


def _spellings(cell: AnyCell, asked: Asked) -> int:
    """Return in how many ways the matrix spells the cell."""
    return prod(len(asked.get((axis, str(entry)), ((),))) for axis, entry, _ in _entries(cell, cell))


def _shape(cell: AnyCell, earlier: Mapping[str, str]) -> str:
    """Return what two paired cells share, as text: the configuration without the entries' parameters. Ids
    of other cells (a training, a cascade's earlier cells) are translated by `earlier`."""
    content = cell.configuration()
    content |= {axis: {**content[axis], "params": {}} for axis in ENTRIES if axis in content}
    if isinstance(cell, AttackCell):
        content["after"] = [earlier.get(id_, id_) for id_ in cell.after]
        if isinstance(cell.weights, CheckpointWeights):
            training = cell.weights.training
            content["weights"] = {**content["weights"], "training": earlier.get(training, training)}
    return json.dumps(content, sort_keys=True)


def _rank(item: tuple[str, AnyCell]) -> tuple[bool, int]:
    """Sort trainings first, then a cascade's cells in their order: ids in a cell are translated before the cell."""
    cell = item[1]
    return (True, len(cell.after)) if isinstance(cell, AttackCell) else (False, 0)
