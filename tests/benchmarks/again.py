"""Rows of the reference made again: `python -P tests/benchmarks/again.py RUN [ORIGINAL]`.

Holds the records of a run against the reference's, or another run's (`bench.reference.again`).  Exit code 1 where a
record differs.
"""

import sys
from pathlib import Path

from bench.matrix.suites import VERSIONS
from bench.record import store as records
from bench.reference import again, store


def main(run: Path, original: Path | None = None) -> int:
    """Print by defense how many records agree, and what differs."""
    before = records.records(original) if original else store.read(VERSIONS["standard"])
    rows = again.compared(records.records(run), before)
    for line in again.lines(rows):
        print(line)
    return 1 if not rows or any(row.differ for row in rows.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main(*map(Path, sys.argv[1:])))
