"""Export a preset's run for the documents: `python docs/export.py RUN…`, in the checkout that ran the preset.

Writes docs/exports/<preset>.json.xz.  `docs/generate.py --all` makes results/<preset>.md from the export and
docs/remarks/<preset>.md; the first bold text in the remarks is the headline in RESULTS.md.
"""

import subprocess
import sys
from pathlib import Path

from _make import exports

from bench.matrix.expand import expand
from bench.matrix.read import read
from bench.record import request
from bench.record import store as records
from bench.sweep.plan import Resolver

FOLDER = Path(__file__).parent / "exports"


def main(run: Path, folder: Path = FOLDER) -> None:
    """Export a run; raises `SystemExit` if cells are missing."""
    if (wanted := request.read(run)) is None:
        raise SystemExit(f"{run}: does not say what made it; run the matrix again")
    matrix = read(wanted.matrix, scale=wanted.scale)
    ids = [item.cell.id for item in expand(matrix, Resolver(None).data)]
    if missing := [each for each in ids if not records.record_path(run, each).exists()]:
        raise SystemExit(f"{run}: not whole, {len(missing)} of {len(ids)} cells are missing; run the matrix again")
    commit = subprocess.check_output(("git", "rev-parse", "--short=7", "HEAD"), text=True).strip()
    export = exports.Export(
        matrix=wanted.matrix,
        scale=matrix.scale,
        title=matrix.title,
        commit=commit,
        published=matrix.published,
        records=tuple(records.read(records.record_path(run, each)) for each in ids),
    )
    path = exports.write(folder, export)
    print(f"{path}: {len(ids)} cells, {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    for each in sys.argv[1:]:
        main(Path(each))
