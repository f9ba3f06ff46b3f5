"""`bench run --cell RECORD`: answer a published question again, and say what differs."""

import json
import tempfile
from pathlib import Path
from typing import Any

import click

from bench.answer.run import Memory, Place, run_cell
from bench.cell import AttackCell, CheckpointWeights
from bench.errors import BenchError, RecordError
from bench.record import fingerprint as source
from bench.record import store as records
from bench.sanitize import LONG, sanitize
from bench.sweep.bundle import needed, unpack
from bench.sweep.pool import steady


def repeat(path: Path, data_dir: Path | None, device: str, as_json: bool) -> int:
    """Run the record's cell into a temporary folder; exit code 0 if it agrees, 1 if it does not."""
    old = records.read(path)
    try:
        cell = records.cell_of(old)
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from None
    with tempfile.TemporaryDirectory() as folder:
        place = Place(run=Path(folder), data_dir=data_dir, device=device)
        if isinstance(cell, AttackCell) and isinstance(cell.weights, CheckpointWeights):
            unpack(place.run, needed(cell, path.resolve().parent.parent))
        steady(device)
        new = run_cell(cell, place, Memory())
    if new.status == "crashed" and old.status != "crashed":
        raise BenchError(f"{path}: cannot be repeated here: {new.reason}")
    differs = differences(old, new)
    sources = source.changed(old.source, new.source)
    if as_json:
        click.echo(json.dumps({"cell": cell.id, "same": not differs, "differs": differs, "source": sources}))
    else:
        for line in sources:
            click.echo(sanitize(f"source  {line}", LONG))
        for key in sorted({*old.environment, *new.environment}):
            if old.environment.get(key) != new.environment.get(key):
                was, now = old.environment.get(key), new.environment.get(key)
                click.echo(sanitize(f"environment  {key}: {was} → {now}", LONG))
        for line in differs:
            click.echo(sanitize(f"differs  {line}", LONG))
        count = "1 figure differs" if len(differs) == 1 else f"{len(differs)} figures differ"
        click.echo(f"cell {cell.id[:8]}: {count if differs else 'the same'}")
    return 1 if differs else 0


def differences(old: records.Record, new: records.Record) -> list[str]:
    """Figures of status, summary and victims that differ, each `where: old → new`."""
    found: list[str] = []
    _walk("status", [old.status, old.reason], [new.status, new.reason], found)
    _walk("summary", old.summary, new.summary, found)
    _walk("victims", old.victims, new.victims, found)
    return found


def _walk(where: str, old: Any, new: Any, found: list[str]) -> None:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            _walk(f"{where}.{key}", old.get(key), new.get(key), found)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            _walk(f"{where}[{number}]", one, other, found)
    elif old != new:
        found.append(f"{where}: {old} → {new}")
