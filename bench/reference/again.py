"""Comparison of cells run again with the shipped records: equal records, and examples leaked in only one of both.

Another processor rounds sums differently, so an attack with a thousand steps may end at other values."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from bench.record.schema import Record
from bench.reference.store import of_defense


@dataclass(slots=True)
class Again:
    """Comparison of repeated cells (experiments) with the shipped results of the same cells, for a defense or an
    attack: the number of equal records, and the differing records."""

    equal: int = 0
    """Number of records with equal status, leaked examples and array hashes."""
    differ: list[str] = field(default_factory=list)
    """Shortened ids of the differing records."""
    examples: int = 0
    """Number of examples in the differing records."""
    only_now: int = 0
    """Number of examples leaked only in the new records."""
    only_before: int = 0
    """Number of examples leaked only in the shipped records."""
    machines: set[tuple[str, str]] = field(default_factory=set)
    """Pairs (device name now, device name before) for differing records."""


def compared(
    now: Iterable[Record], before: Iterable[Record], by: Callable[[Record], str] = of_defense
) -> dict[str, Again]:
    """Compare a repetition with the shipped results, cell by cell (experiment). Return defense or attack → agreement.

    - `now`, `before`: repeated and shipped records; records with equal ids are compared.
    - `by`: function from a record to the name of its defense or attack."""
    old = {record.id: record for record in before}
    rows: dict[str, Again] = {}
    for record in now:
        if (other := old.get(record.id)) is None:
            continue
        row = rows.setdefault(by(record), Again())
        if _outcome(record) == _outcome(other):
            row.equal += 1
            continue
        row.differ.append(record.id[:8])
        mine, theirs = _leaked(record), _leaked(other)
        row.examples += len(mine.keys() | theirs.keys())
        row.only_now += sum(leaks and not theirs.get(example) for example, leaks in mine.items())
        row.only_before += sum(leaks and not mine.get(example) for example, leaks in theirs.items())
        if record.environment and other.environment:
            row.machines.add((record.environment.device_name, other.environment.device_name))
    return rows


def lines(rows: Mapping[str, Again]) -> Iterator[str]:
    """Yield lines of text about the agreement of repeated and shipped records, a line for each defense and more for
    differing machines. `rows` maps a defense to its agreement, from `compared`."""
    for name, row in rows.items():
        yield f"{name}: {row.equal} of {row.equal + len(row.differ)} records are equal, arrays bit for bit"
        if row.differ:
            first = ", ".join(row.differ[:3]) + (", …" if len(row.differ) > 3 else "")
            yield (
                f"{len(row.differ)} differ, {first}: of their {row.examples} examples {row.only_now} leak now alone, "
                f"{row.only_before} leaked before alone"
            )
            yield from (f"now on {now}, before on {before}" for now, before in sorted(row.machines))


def _outcome(record: Record) -> object:
    """Return a record's outcome without cost and machine, rounded to the digits in shipped records."""
    if record.attack is not None:
        return record.status, record.attack.arrays, _leaked(record)
    training = record.training
    return record.status, training and (training.checkpoints, f"{training.accuracy:.5g}")


def _leaked(record: Record) -> dict[tuple[int, int], bool]:
    """Return (reading, example) → whether the example leaked."""
    if record.attack is None:
        return {}
    return {
        (number, place): example.success
        for number, reading in record.attack.numbered()
        for place, example in enumerate(reading.examples)
    }
