"""What is left to do in a run: a cell with a record of the same provenance is done, any other runs again."""

from pathlib import Path
from typing import Any

import pytest
from tests.cells import RESOLVER, alter, answer, attack, crash, entry, training

from bench.cell import AnyCell, CheckpointWeights, Federated
from bench.matrix.expand import PlannedCell
from bench.record import store as records
from bench.sweep.plan import RunSchedule, schedule


def left(folder: Path, *cells: AnyCell) -> RunSchedule:
    return schedule([PlannedCell(cell, None) for cell in cells], folder, RESOLVER)


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


@pytest.mark.parametrize(("rate", "rounds"), [(1e30, 3), (1e21, 1)])  # weights become infinite; stay finite
def test_a_training_that_diverged_is_settled(tmp_path: Path, rate: float, rounds: int) -> None:
    cell = training(
        model=entry("models", "mlp", activation="relu"),
        federated=Federated(clients=10, per_round=2, batch=4, rate=rate),
        rounds=rounds,
        checkpoints=(rounds,),
    )
    record = answer(cell, tmp_path)
    assert record.training is not None
    assert record.training.diverged
    assert left(tmp_path, cell).done == (cell,)
    attacked = answer(
        attack(CheckpointWeights(training=cell.id, round=rounds), model=cell.model, federated=cell.federated), tmp_path
    )
    assert (attacked.status, attacked.reason) == ("n/a", f"training {cell.id[:8]} diverged before round {rounds}")


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
