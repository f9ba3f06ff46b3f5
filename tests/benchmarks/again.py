"""Rows of the reference made again: `python -P tests/benchmarks/again.py RUN`.

Holds each record of a run against the shipped one of the same cell: its status, what leaked, and the hash of its
arrays, which are the truth and every reconstruction, bit for bit.  Exit code 1 where one differs.
"""

import sys
from pathlib import Path

from bench.matrix.suites import VERSIONS
from bench.record import store as records
from bench.record.names import entry_text
from bench.record.schema import Record
from bench.reference import store


def main(run: Path, version: str = VERSIONS["standard"]) -> int:
    """Print what differs, and how many records agree, by defense."""
    shipped = {record.id: record for record in store.read(version)}
    agree: dict[str, int] = {}
    differ = 0
    for record in records.records(run):
        old = shipped.get(record.id)
        if old is None:
            continue
        name = entry_text(record.cell.defense)
        agree.setdefault(name, 0)
        if _outcome(record) == _outcome(old):
            agree[name] += 1
        else:
            differ += 1
            print(f"differs: {record.id[:8]} {name}")
    for name, count in agree.items():
        print(f"{count} records of {name} are equal, arrays bit for bit")
    return 1 if differ or not agree else 0


def _outcome(record: Record) -> object:
    """What a record says, without cost, machine and digits beyond those that ship."""
    if record.attack is not None:
        leaked = [
            [example.success for example in reading.examples] for _, reading in record.attack.numbered()
        ]
        return record.status, record.arrays, leaked, [number for number, _ in record.attack.numbered()]
    training = record.training
    return record.status, training and (training.checkpoints, f"{training.accuracy:.5g}")


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
