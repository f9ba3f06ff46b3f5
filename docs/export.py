"""Export a preset's run for the documents: `python docs/export.py [--partial] RUN…`, in the checkout that ran.

Writes docs/exports/<preset>.json.xz; with --partial the finished cells of a run that is not whole.
`docs/generate.py --all` makes results/<preset>.md from the export and docs/remarks/<preset>.md; the first bold text in
the remarks is the headline in RESULTS.md.
"""

import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from _make import exports
from _make.exports import Place
from _make.papers import SIZE

from bench.cell import TrainingCell
from bench.errors import MissingDataError
from bench.matrix.expand import expand
from bench.matrix.read import read
from bench.record import request
from bench.record import store as records
from bench.record.schema import Record
from bench.sweep.plan import Resolver

PARTIAL = "--partial"
FOLDER = Path(__file__).parent / "exports"
PRESETS = Path(__file__).parent.parent / "bench" / "presets"
UNTESTED = {"test_every": 1, "test_examples": 1, "checkpoints": (), "until_accuracy": None}


def main(run: Path, folder: Path = FOLDER, *, partial: bool = False) -> None:
    """Export a run; raises `SystemExit` if cells are missing, with `partial` if all are."""
    if (wanted := request.read(run)) is None:
        raise SystemExit(f"{run}: does not say what made it; run the matrix again")
    matrix = read(wanted.matrix, scale=wanted.scale)
    ids = [item.cell.id for item in expand(matrix, Resolver(None).data)]
    missing = [each for each in ids if not records.record_path(run, each).exists()]
    if len(missing) == len(ids) or (missing and not partial):
        raise SystemExit(f"{run}: not whole, {len(missing)} of {len(ids)} cells are missing; run the matrix again")
    commit = subprocess.check_output(("git", "rev-parse", "--short=7", "HEAD"), text=True).strip()
    export = exports.Export(
        matrix=wanted.matrix,
        scale=matrix.scale,
        title=matrix.title,
        commit=commit,
        published=matrix.published,
        records=(its := tuple(records.read(records.record_path(run, each)) for each in ids if each not in missing)),
        unfinished=len(missing),
        tables=_tables(wanted.matrix, its),
    )
    path = exports.write(folder, export)
    print(f"{path}: {len(ids) - len(missing)} of {len(ids)} cells, {path.stat().st_size / 1000:.0f} kB")


def _tables(matrix: str, its: Sequence[Record]) -> dict[str, tuple[Place, ...]]:
    """The paper's presets → the trainings of a run at full size that are their trainings at scale `full`."""
    paper, _, name = matrix.partition("/")
    if not name.startswith(SIZE):
        return {}
    known = {_key(record.cell): record.id for record in its if isinstance(record.cell, TrainingCell)}
    tables = {}
    for path in sorted((PRESETS / paper).glob("*.toml")):
        if path.stem.startswith(SIZE):
            continue
        scale = "full" if "scales" in tomllib.loads(path.read_text("utf-8")) else None
        try:
            cells = [item.cell for item in expand(read(f"{paper}/{path.stem}", scale=scale), Resolver(None).data)]
        except MissingDataError:  # such as APTOS 2019, which is not free to copy: no record of that preset
            continue
        trained = [cell for cell in cells if isinstance(cell, TrainingCell) and _key(cell) in known]
        if trained:
            tables[path.stem] = tuple(Place(record=known[_key(cell)], until=cell.until_accuracy) for cell in trained)
    return tables


def _key(cell: TrainingCell) -> str:
    """A training without its tests and its end."""
    return cell.model_copy(update=UNTESTED).id


if __name__ == "__main__":
    for each in sys.argv[1:]:
        if each != PARTIAL:
            main(Path(each), partial=PARTIAL in sys.argv)
