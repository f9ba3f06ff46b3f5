"""Run a cell of each export again and compare: `python docs/again.py [--minutes M] [--out FOLDER] [EXPORT[:ID]…]`.

EXPORT: a name in docs/exports, such as niss-labels; none: all.  The cell: the cheapest finished cell that
needs no other, or the cell whose id begins with ID.  A line for each cell; docs/exports/again.json keeps the lines.
A training longer than M minutes is compared as far as it came.  Exit code 1 if a figure differs beyond its interval.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from _make import again, exports
from _make.again import Again

from bench.answer.context import Memory, RunContext, TrainingProgress
from bench.answer.run import run
from bench.errors import BenchError
from bench.isolation.process import single_threaded
from bench.record import store as records
from bench.record.fingerprint import own
from bench.record.schema import Record, TrainingResult

FOLDER = Path(__file__).parent / "exports"


def main(names: Sequence[str], minutes: float, out: Path, folder: Path = FOLDER) -> int:
    """Run the cells again, write the comparisons, and return the exit code."""
    wanted = dict(name.partition(":")[::2] for name in names)
    commit = subprocess.check_output(("git", "rev-parse", "--short=8", "HEAD"), text=True).strip()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    single_threaded()
    code = 0
    for export in exports.every(folder):
        if wanted and export.name not in wanted:
            continue
        cells = again.candidates(export.records, device)
        old = next((each for each in cells if each.id.startswith(wanted.get(export.name, ""))), None)
        if old is None:
            print(f"{export.name}: every finished cell needs files of another")
            continue
        line = _again(export.name, old, out / export.name, device, minutes, commit)
        again.write(folder / again.FILE, [line])
        print(
            f"{line.export} {line.cell} {line.what}: {line.old} → {line.new}: {line.verdict} ({line.why})", flush=True
        )
        code |= line.verdict == again.DIFFERS
    return code


def _again(export: str, old: Record, out: Path, device: str, minutes: float, commit: str) -> Again:
    curve: list[tuple[int, float]] = []
    tested = {at for at, _ in old.result.curve} if isinstance(old.result, TrainingResult) else set()
    began, stopped = time.perf_counter(), False

    def limited(progress: TrainingProgress) -> None:
        nonlocal stopped
        curve.append((progress.round, progress.accuracy))
        if progress.round in tested and progress.seconds_left > 0 and time.perf_counter() - began > 60 * minutes:
            stopped = True
            raise BenchError(f"stopped after {progress.round} rounds")

    path = records.record_path(out, old.id)
    new = records.read(path) if path.exists() else None
    if new is None or new.status != old.status or new.provenance.bench != own():
        new = run(old.cell, RunContext(run=out, data_dir=None, device=device), Memory(), on_progress=limited)
        records.write(out, new)
    if new.status == old.status:
        return again.compared(export, commit, old, new)
    if stopped:
        return again.begun(export, commit, old, new, curve)
    return again.failed(export, commit, old, new.reason or new.status)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("exports", nargs="*", metavar="EXPORT[:ID]")
    parser.add_argument("--minutes", type=float, default=15.0, help="time for a training (15)")
    parser.add_argument("--out", type=Path, default=Path("runs/again"), help="folder of the runs")
    options = parser.parse_args()
    sys.exit(main(options.exports, options.minutes, options.out))
