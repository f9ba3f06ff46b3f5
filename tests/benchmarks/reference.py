"""The reference results from a run of a suite: `python -P tests/benchmarks/reference.py RUN [standard|attacks]`.

Writes bench/reference/<version>/: a file of compact records for each complete row, and for a defense setting a strip.
Names the incomplete rows, and the registered entries without a row.  `bench run --matrix reference --shard i/n` makes
the run of defenses, `bench run --suite attacks` the run of attacks; both go on where they stopped.  A new version of
`standard` has every registered defense, in at most `MOST` settings; a shipped version may lack entries of later
registration.
"""

import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from bench.cell import AttackCell
from bench.leaderboard.forms.strips import VICTIMS_NAME, strips
from bench.matrix.expand import expand
from bench.matrix.read import read
from bench.matrix.suites import ATTACKS, VERSIONS
from bench.record import store as records
from bench.record.names import attack_name, entry_text
from bench.record.schema import Record
from bench.reference import store
from bench.registry import entries
from bench.sweep.plan import Resolver

MOST = 35  # settings that fit the time of one reference run


def defenses(run: Path, matrix: str = "reference", version: str = VERSIONS["standard"]) -> None:
    """Write the defense settings that the run has in full."""
    wanted: defaultdict[str, list[str]] = defaultdict(list)
    for item in expand(read(matrix), Resolver(None).data):
        wanted[entry_text(item.cell.defense)].append(item.cell.id)
    unmeasured = _unmeasured("defenses", wanted)
    if version not in store.versions() and (unmeasured or len(wanted) > MOST):
        raise SystemExit(f"{version}: a new version has every registered defense, in at most {MOST} settings")
    done = _whole(run, wanted)
    settings = {entry_text(record.cell.defense) for record in done} | {VICTIMS_NAME}
    folders = {record.id: run for record in done}
    made = {name: strip for name, strip in strips(done, folders).items() if name in settings}
    _say(store.write(version, done, made))


def attacks(run: Path, matrix: str | Path = ATTACKS, version: str = VERSIONS[ATTACKS]) -> None:
    """Write the attacks that the run has in full; other attacks' files stay."""
    wanted: defaultdict[str, list[str]] = defaultdict(list)
    for item in expand(read(matrix), Resolver(None).data):
        if isinstance(item.cell, AttackCell):
            wanted[attack_name(item.cell)].append(item.cell.id)
    _unmeasured("attacks", wanted)
    _say(store.write(version, _whole(run, wanted), by=store.of_attack))


def _unmeasured(kind: str, wanted: Mapping[str, list[str]]) -> set[str]:
    names = {row.partition("(")[0].partition(" ·")[0] for row in wanted}
    if unmeasured := set(entries.names(kind)) - names:
        print(f"not yet measured: {', '.join(sorted(unmeasured))}")
    return unmeasured


def _whole(run: Path, wanted: Mapping[str, list[str]]) -> list[Record]:
    """The records of each row that has all its cells, none of them crashed."""
    done: list[Record] = []
    for row, ids in wanted.items():
        there = [records.record_path(run, each) for each in ids]
        if missing := sum(not path.exists() for path in there):
            print(f"not whole: {row}, {missing} of {len(ids)} cells are missing")
            continue
        its = [records.read(path) for path in there]
        if crashed := sum(record.status == "crashed" for record in its):
            print(f"not whole: {row}, {crashed} of {len(ids)} cells crashed")
            continue
        done += its
    return done


def _say(paths: tuple[Path, ...]) -> None:
    for path in paths:
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    ROWS = {"standard": defenses, ATTACKS: attacks}
    ROWS[sys.argv[2] if len(sys.argv) > 2 else "standard"](Path(sys.argv[1]))
