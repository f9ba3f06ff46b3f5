"""Rows of the reference made again: `python -P tests/benchmarks/again.py RUN [ORIGINAL]`.

Holds each record of a run against the same cell's of the reference, or of another run: its status, what leaked, and
the hash of its arrays, which are the truth and every reconstruction, bit for bit.  On another processor sums are
rounded in another order: there this says how many examples leak in one run alone.  Exit code 1 where one differs.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from bench.matrix.suites import VERSIONS
from bench.record import store as records
from bench.record.names import entry_text
from bench.record.schema import Record
from bench.reference import store


@dataclass
class Row:
    """One defense's records: how many agree, which differ, and of those the examples that leak in one run alone."""

    equal: int = 0
    differ: list[str] = field(default_factory=list)
    examples: int = 0
    only_now: int = 0
    only_before: int = 0
    machines: set[tuple[str, str]] = field(default_factory=set)


def main(run: Path, original: Path | None = None) -> int:
    """Print by defense how many records agree, and what differs."""
    rows = compared(
        records.records(run), records.records(original) if original else store.read(VERSIONS["standard"])
    )
    for name, row in rows.items():
        print(f"{name}: {row.equal} of {row.equal + len(row.differ)} records are equal, arrays bit for bit")
        if row.differ:
            print(
                f"  {len(row.differ)} differ: of their {row.examples} examples {row.only_now} leak now alone, "
                f"{row.only_before} leaked before alone; {', '.join(row.differ[:5])}…"
            )
            print(
                "  " + "; ".join(f"now on {now}, before on {before}" for now, before in sorted(row.machines))
            )
    return 1 if not rows or any(row.differ for row in rows.values()) else 0


def compared(now: Iterable[Record], before: Iterable[Record]) -> dict[str, Row]:
    """The records that both have, by defense."""
    old = {record.id: record for record in before}
    rows: dict[str, Row] = {}
    for record in now:
        if (other := old.get(record.id)) is None:
            continue
        row = rows.setdefault(entry_text(record.cell.defense), Row())
        if _outcome(record) == _outcome(other):
            row.equal += 1
            continue
        row.differ.append(record.id[:8])
        mine, theirs = _leaked(record), _leaked(other)
        row.examples += len(mine | theirs)
        row.only_now += sum(leaks and not theirs.get(example) for example, leaks in mine.items())
        row.only_before += sum(leaks and not mine.get(example) for example, leaks in theirs.items())
        if record.environment and other.environment:
            row.machines.add((record.environment.device_name, other.environment.device_name))
    return rows


def _outcome(record: Record) -> object:
    """What a record says, without cost, machine and digits beyond those that ship."""
    if record.attack is not None:
        return record.status, record.attack.arrays, _leaked(record)
    training = record.training
    return record.status, training and (training.checkpoints, f"{training.accuracy:.5g}")


def _leaked(record: Record) -> dict[tuple[int, int], bool]:
    """(reading, example) → whether it is reconstructed."""
    if record.attack is None:
        return {}
    return {
        (number, place): example.success
        for number, reading in record.attack.numbered()
        for place, example in enumerate(reading.examples)
    }


if __name__ == "__main__":
    raise SystemExit(main(*map(Path, sys.argv[1:])))
