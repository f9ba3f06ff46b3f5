"""`bench run --cell RECORD`: repeat a published cell (experiment) and report differences."""

import json
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import click

from bench.answer.context import Memory, RunContext
from bench.answer.run import run
from bench.cell import AttackCell, CheckpointWeights
from bench.errors import BenchError
from bench.isolation.isolation import Isolation
from bench.isolation.process import single_threaded
from bench.record import fingerprint, store
from bench.record.equality import differences, unequal
from bench.sanitize import LONG, sanitize
from bench.sweep.bundle import inputs, unpack


def repeat(path: Path, data_dir: Path | None, device: str, plugins: Sequence[str], as_json: bool) -> int:
    """Repeat a published cell (experiment): run the cell of the record at `path` in a temporary folder, and print the
    differences between the two records. Return 0 if both records agree, otherwise 1.

    - `data_dir`: folder of data sets; None for the default folder.
    - `device`: torch device on which the cell runs.
    - `plugins`: files with a user's attacks, defenses, data sets or models.
    - `as_json`: True prints the differences as JSON, in place of text.

    Raises `BenchError` if the cell crashes now, but did not before."""
    old = store.read(path, foreign=True)
    cell = old.cell
    with tempfile.TemporaryDirectory() as folder:
        context = RunContext(run=Path(folder), data_dir=data_dir, device=device)
        if isinstance(cell, AttackCell) and (cell.after or isinstance(cell.weights, CheckpointWeights)):
            unpack(context.run, inputs(cell, path.resolve().parent.parent))
        single_threaded()
        with closing(Isolation(plugins, device)) as isolation:
            new = run(cell, context, Memory(), place=isolation)
    if new.status == "crashed" and old.status != "crashed":
        raise BenchError(f"{path}: cannot be repeated here: {new.reason}")
    differs = differences(old, new)
    changes = fingerprint.changed(old.provenance, new.provenance)
    if as_json:
        result = {"cell": cell.id, "same": not differs, "differs": differs, "provenance": changes}
        click.echo(json.dumps(result))
        return 1 if differs else 0
    machine = unequal("environment", old.environment, new.environment)
    lines = [f"code  {line}" for line in changes]
    lines += [f"{field}: {before} → {after}" for field, before, after in machine]
    for line in (*lines, *(f"differs  {line}" for line in differs)):
        click.echo(sanitize(line, LONG))
    count = "1 field differs" if len(differs) == 1 else f"{len(differs)} fields differ"
    click.echo(f"cell {cell.id[:8]}: {count if differs else 'the same'}")
    return 1 if differs else 0
