"""How a run's time falls with workers: `python -P tests/benchmarks/scaling.py [ROUNDS [SEEDS [jobs]]]`.

The same matrix (eight cells a seed) with one and two worker processes, and unless `jobs` alone is asked for on a Dask
cluster of one and two workers, in turn; prints the wall-clock seconds of each run from start to end of its cells, and
the median of the paired ratios.  Real runs are compared whole, so this is no pytest benchmark.
"""

import json
import re
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from tests import runs
from tests.lab import Lab

MATRIX = """
title = "scaling"
readings = 8
evaluations = 300
[axes]
dataset = ["mnist"]
model = ["dlg-lenet"]
attack = ["cpl"]
defense = ["none", "prune", "gaussian", "low-rank"]
point = ["type-2", "type-1"]
seed = {seeds}
"""


def seconds(matrix: Path, out: Path, *how: str) -> float:
    """Seconds from the pool's start to its last record, as the run reports them."""
    output = runs.ran("run", "--matrix", matrix, "--no-tracking", "--json", "--out", out, *how)
    reported = re.search(r'"seconds": ([0-9.]+)', output)
    assert reported
    return float(reported.group(1))


def main() -> None:
    rounds, seeds = (int(number) for number in (*sys.argv[1:3], *("3", "2")[len(sys.argv[1:3]) :]))
    clusters = () if "jobs" in sys.argv else (1, 2)
    measured: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        matrix = folder / "scaling.toml"
        matrix.write_text(MATRIX.format(seeds=list(range(seeds))))
        for number in range(rounds):
            for count in (1, 2):
                out = folder / f"{number}-jobs-{count}"
                measured.setdefault(f"jobs {count}", []).append(seconds(matrix, out, "--jobs", str(count)))
            for count in clusters:
                here = folder / f"{number}-dask-{count}"
                here.mkdir()
                lab = Lab(here)
                lab.staff(count)
                try:
                    took = seconds(matrix, here / "run", "--executor", lab.address)
                finally:
                    lab.close()
                measured.setdefault(f"dask {count}", []).append(took)
            runs.assert_equal(folder / f"{number}-jobs-2", folder / f"{number}-jobs-1")
            if clusters:
                runs.assert_equal(folder / f"{number}-dask-2" / "run", folder / f"{number}-jobs-1")
    ratios = {
        kind: statistics.median(a / b for a, b in zip(measured[f"{kind} 1"], measured[f"{kind} 2"], strict=True))
        for kind in ("jobs", "dask")
        if f"{kind} 2" in measured
    }
    print(json.dumps({"seconds": measured, "one worker's time over two workers'": ratios}, indent=1))


if __name__ == "__main__":
    main()
