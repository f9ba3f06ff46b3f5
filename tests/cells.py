"""Small cells on digits for tests, their records, and damage to record files."""

import json
from pathlib import Path
from typing import Any

from bench.answer.context import Memory, RunContext
from bench.answer.run import run
from bench.answer.setup import Setup, load_data, prepare, source_of
from bench.cell import AnyCell, AttackCell, DataRef, Entry, Federated, Grants, TrainingCell
from bench.matrix.expand import expand
from bench.matrix.read import read
from bench.parameters import values
from bench.record import store as records
from bench.record.schema import Record
from bench.registry import entries as registry
from bench.sweep.plan import Resolver

RESOLVER = Resolver(None)
MEMORY = Memory()
GALLERY = 60  # candidates
# Tests over all defenses take these in `tox -e full`: masks, clips and noise as other defenses have, and twenty draws.
LATER = {"nvflare-percentile", "nvflare-svt", "local-dp-mod", "censor"}
PRUNE, NONE = Entry(name="prune", params={"share": 0.7}), Entry(name="none")
NOISE = Entry(name="gaussian", params={"at": "client", "variance": 1e-3})


def entry(kind: str, name: str, **params: Any) -> Entry:
    """An entry with all its parameters."""
    return Entry(name=name, params=values(registry.instance(kind, name, params)))


def data() -> DataRef:
    return DataRef(name="digits", sha256=RESOLVER.data("digits", {}).sha256)


def training(**changed: Any) -> TrainingCell:
    fields: dict[str, Any] = {
        "dataset": data(),
        "model": entry("models", "mlp"),
        "defense": entry("defenses", "none"),
        "federated": Federated(clients=10, per_round=2, batch=4),
        "rounds": 2,
        "checkpoints": (1, 2),
        "test_examples": 50,
    }
    return TrainingCell(**(fields | changed))


def attack(weights: Any = None, **changed: Any) -> AttackCell:
    fields: dict[str, Any] = {
        "dataset": data(),
        "model": entry("models", "mlp"),
        "defense": entry("defenses", "none"),
        "federated": Federated(clients=10, per_round=2, batch=4),
        "attack": entry("attacks", "labels-only"),
        "point": "type-2",
        "readings": 2,
    }
    return AttackCell(**(fields | ({"weights": weights} if weights else {}) | changed))


def prepared(cell: AttackCell, context: RunContext, memory: Memory) -> Setup:
    """The values for a cell's round, from the data set in the memory."""
    return prepare(cell, source_of(cell, load_data(cell, context, memory), context.run), context)


def mixed_cell(where: str = "type-2", batch: int = 3, **changes: Any) -> AttackCell:
    fields: dict[str, Any] = {
        "dataset": data(),
        "model": Entry(name="dlg-lenet"),
        "federated": Federated(batch=batch, clients=20, per_round=4),
        "defense": Entry(name="mixup", params={"alpha": 1.0}),
        "attack": Entry(name="prior-mean"),
        "point": where,
        "readings": 4,
        "evaluations": 4,
    }
    return AttackCell(**(fields | changes))


def mate(defense: Entry = NONE, **changes: Any) -> AttackCell:
    return AttackCell(
        **{
            "dataset": data(),
            "model": Entry(name="dlg-lenet"),
            "attack": Entry(name="cpl"),
            "federated": Federated(clients=10, per_round=4, batch=2),
            "defense": defense,
            "point": "type-1",
            "readings": 3,
            "evaluations": 60,
            "grants": Grants(labels=True),
            **changes,
        }
    )


def named_cells(
    tmp_path: Path,
    *,
    defense: str = '"none"',
    batch: int = 1,
    size: int = GALLERY,
    labels: bool = False,
    where: str = "type-1",
    readings: int = 6,
    per_round: int = 10,
) -> list[AttackCell]:
    """Plain and adaptive namings of digits."""
    labels_too = '"labels", ' if labels else ""
    grants = f"[{labels_too}{{ gallery = {size} }}]"
    path = tmp_path / "gallery.toml"
    path.write_text(
        f"""title = "gallery"
readings = {readings}
[axes]
dataset = ["digits"]
model = ["dlg-lenet"]
attack = ["gallery"]
knowledge = ["plain", "adaptive"]
grants = [{grants}]
point = ["{where}"]
federated = [{{ batch = {batch}, per_round = {per_round} }}]
[[attack]]
defense = [{defense}]
"""
    )
    planned = expand(read(path), Resolver(None).data)
    return [one.cell for one in planned if isinstance(one.cell, AttackCell)]


def answer(cell: AnyCell, folder: Path) -> Record:
    record = run(cell, RunContext(run=folder), MEMORY)
    records.write(folder, record)
    return record


def alter(path: Path, **changed: Any) -> None:
    """Write these fields into the JSON of a record file; `result__arrays` is the field of a field."""
    content = json.loads(path.read_text())
    for name, value in changed.items():
        *parents, last = name.split("__")
        part = content
        for parent in parents:
            part = part[parent]
        part[last] = value
    path.write_text(json.dumps(content))


def crash(path: Path, reason: str = "it fell", **changed: Any) -> None:
    """Turn a record file into that of a cell that crashed."""
    alter(path, status="crashed", reason=reason, result=None, **changed)
