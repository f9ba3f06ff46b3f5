"""The reference results from a run of the suite: `python -P tests/benchmarks/reference.py RUN`.

Writes bench/reference/<version>/: a file of compact records and a strip for each complete defense setting.  Names the
incomplete settings, and the registered defenses without a setting.  `bench run --matrix reference --shard i/n` makes
the run.  A new version of a suite has every registered defense, in at most `MOST` settings; a shipped version may lack
defenses of later registration.
"""

import sys
from collections import defaultdict
from pathlib import Path

from bench.leaderboard.forms.strips import VICTIMS_NAME, strips
from bench.matrix.expand import expand
from bench.matrix.read import read
from bench.matrix.suites import VERSIONS
from bench.record import store as records
from bench.record.names import entry_text
from bench.record.schema import Record
from bench.reference import store
from bench.registry import entries
from bench.sweep.plan import Resolver

MOST = 35  # settings that fit the time of one reference run


def main(run: Path, matrix: str = "reference", version: str = VERSIONS["standard"]) -> None:
    """Write what the run has of the matrix."""
    wanted: defaultdict[str, list[str]] = defaultdict(list)
    for item in expand(read(matrix), Resolver(None).data):
        wanted[entry_text(item.cell.defense)].append(item.cell.id)
    if unmeasured := set(entries.names("defenses")) - {setting.partition("(")[0] for setting in wanted}:
        print(f"not yet measured: {', '.join(sorted(unmeasured))}")
    if version not in store.versions() and (unmeasured or len(wanted) > MOST):
        raise SystemExit(f"{version}: a new version has every registered defense, in at most {MOST} settings")
    done: list[Record] = []
    for setting, ids in wanted.items():
        there = [records.record_path(run, each) for each in ids]
        if missing := sum(not path.exists() for path in there):
            print(f"not whole: {setting}, {missing} of {len(ids)} cells are missing")
            continue
        done += map(records.read, there)
    settings = {entry_text(record.cell.defense) for record in done} | {VICTIMS_NAME}
    folders = {record.id: run for record in done}
    made = {name: strip for name, strip in strips(done, folders).items() if name in settings}
    for path in store.write(version, done, made):
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
