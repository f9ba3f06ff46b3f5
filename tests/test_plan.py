"""What is left to do in a run: a cell with a record of the same provenance is done, any other runs again."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.answer.context import Memory, RunContext
from bench.answer.run import run
from bench.cell import AnyCell, AttackCell, CheckpointWeights, DataRef, Entry, Federated, TrainingCell
from bench.matrix.expand import PlannedCell
from bench.record import store as records
from bench.record.schema import Record
from bench.sweep.plan import Resolver, RunSchedule, schedule

RESOLVER = Resolver(None)
MEMORY = Memory()


def entry(kind: str, name: str, **params: Any) -> Entry:
    from bench.parameters import values
    from bench.registry import entries as registry

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


def answer(cell: AnyCell, folder: Path) -> Record:
    record = run(cell, RunContext(run=folder), MEMORY)
    records.write(folder, record)
    return record


def left(folder: Path, *cells: AnyCell) -> RunSchedule:
    return schedule([PlannedCell(cell, None) for cell in cells], folder, RESOLVER)


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


def test_a_finished_cell_is_done(tmp_path: Path) -> None:
    cell = attack()
    assert answer(cell, tmp_path).status == "done"
    assert left(tmp_path, cell).done == (cell,)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"provenance__bench__version": "0"}, "bench: version 0 →"),
        ({"status": "crashed", "reason": "it fell", "result": None}, "crashed: it fell"),
        ({"schema": 99}, "schema 99"),
        ({"result__arrays": "0" * 64}, "is missing"),
    ],
)
def test_what_does_not_count_runs_again_and_says_why(tmp_path: Path, changed: dict[str, Any], reason: str) -> None:
    cell = attack()
    answer(cell, tmp_path)
    alter(records.record_path(tmp_path, cell.id), **changed)
    schedule = left(tmp_path, cell)
    assert schedule.waiting == (cell,)
    assert reason in schedule.again[cell.id]


@pytest.mark.parametrize("content", ["{", '{"schema": 99}', "[]"])
def test_a_damaged_record_is_kept_aside_and_the_cell_runs(tmp_path: Path, content: str) -> None:
    cell = attack()
    path = records.record_path(tmp_path, cell.id)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert left(tmp_path, cell).waiting == (cell,)
    answer(cell, tmp_path)
    assert records.read(path).status == "done"
    assert [kept.read_text() for kept in (tmp_path / "kept").iterdir()] == [content]


def test_an_attack_on_a_checkpoint_follows_its_training(tmp_path: Path) -> None:
    trained = training()
    on_it = attack(CheckpointWeights(training=trained.id, round=2))
    record = answer(trained, tmp_path)
    attacked = answer(on_it, tmp_path)
    assert attacked.status == "done"
    assert record.training is not None
    assert attacked.provenance.weights == record.training.checkpoints[2]
    assert left(tmp_path, trained, on_it).waiting == ()
    # another training under the same id: its weights are others, so the attack runs again
    path = records.record_path(tmp_path, trained.id)
    alter(path, result__checkpoints={"1": "1" * 64, "2": "2" * 64})
    assert left(tmp_path, on_it).waiting == (on_it,)
    # a training that runs again takes its attacks along
    crash(path)
    schedule = left(tmp_path, trained, on_it)
    assert schedule.waiting == (trained, on_it)
    assert "its training runs again" in schedule.again[on_it.id]
    # and without a finished training nothing is attacked
    assert "did not finish (it fell)" in str(answer(on_it, tmp_path).reason)


def test_weights_are_checked_by_content(tmp_path: Path) -> None:
    trained = training()
    answer(trained, tmp_path)
    path = tmp_path / "weights" / trained.id / "round-2.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    record = answer(attack(CheckpointWeights(training=trained.id, round=2)), tmp_path)
    assert (record.status, "content changed" in str(record.reason)) == ("crashed", True)


def test_one_more_round_to_keep_changes_no_id_and_trains_again(tmp_path: Path) -> None:
    some, more = training(checkpoints=(2,)), training(checkpoints=(1, 2))
    assert some.id == more.id
    answer(some, tmp_path)
    assert left(tmp_path, some).done == (some,)
    assert "round-1.safetensors is missing" in left(tmp_path, more).again[more.id]


def test_a_training_that_diverged_is_settled(tmp_path: Path) -> None:
    cell = training(
        model=entry("models", "mlp", activation="relu"),
        federated=Federated(clients=10, per_round=2, batch=4, rate=1e30),
        rounds=3,
        checkpoints=(3,),
    )
    record = answer(cell, tmp_path)
    assert record.training is not None
    assert record.training.diverged
    assert left(tmp_path, cell).done == (cell,)
    attacked = answer(
        attack(CheckpointWeights(training=cell.id, round=3), model=cell.model, federated=cell.federated), tmp_path
    )
    assert (attacked.status, attacked.reason) == ("n/a", f"training {cell.id[:8]} diverged before round 3")


def test_cells_that_may_share_a_reading_go_together(tmp_path: Path) -> None:
    federated = Federated(clients=10, per_round=2, batch=4)
    cells = [
        attack(defense=entry("defenses", defense), point=point, federated=federated)
        for defense in ("none", "prune")
        for point in ("type-2", "type-1", "type-0")
    ]
    groups = [group.cells for group in left(tmp_path, *cells).groups]
    assert sorted(len(group) for group in groups) == [2, 4]
    assert {cell.model_dump()["point"] for cell in min(groups, key=len)} == {"type-2"}
