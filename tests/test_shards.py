"""A matrix in parts, and run folders put together again: nothing twice, nothing lost, nothing taken on trust."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tests.test_plan import MEMORY, RESOLVER, answer, attack, entry, training

from bench.answer.run import Place, run_cell
from bench.cell import AnyCell, CheckpointWeights
from bench.cli.main import cli
from bench.errors import BenchError, RecordError
from bench.matrix.expand import Planned
from bench.record import store as records
from bench.sweep.estimates import Estimates
from bench.sweep.merge import merge
from bench.sweep.plan import share


def cells() -> list[AnyCell]:
    """Four trainings with two attacks each, and eight groups of three on untrained weights."""
    made = [training(seed=seed) for seed in range(4)]
    found: list[AnyCell] = [*made]
    found += [
        attack(CheckpointWeights(training=one.id, round=2), defense=entry("defenses", name))
        for one in made
        for name in ("none", "prune")
    ]
    found += [
        attack(seed=seed, defense=entry("defenses", name), readings=1 + seed)
        for seed in range(8)
        for name in ("none", "prune", "low-rank")
    ]
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 7, 30])
def test_shards_are_a_partition_that_keeps_together_what_shares_work(count: int) -> None:
    planned = [Planned(cell, None) for cell in cells()]
    parts = [share(planned, number, count, RESOLVER) for number in range(1, count + 1)]
    ids = [item.cell.id for part in parts for item in part]
    assert sorted(ids) == sorted(item.cell.id for item in planned)
    at = {item.cell.id: number for number, part in enumerate(parts) for item in part}
    for item in planned:
        cell = item.cell
        if cell.kind == "attack" and isinstance(cell.weights, CheckpointWeights):
            assert at[cell.id] == at[cell.weights.training]
    for seed in range(8):
        assert len({at[cell.id] for cell in cells() if cell.kind == "attack" and cell.seed == seed
                    and not isinstance(cell.weights, CheckpointWeights)}) == 1  # fmt: skip


def test_shards_take_about_equal_time() -> None:
    planned = [Planned(cell, None) for cell in cells()]
    seconds = Estimates(RESOLVER.shape).seconds
    loads = [sum(seconds(item.cell) for item in share(planned, n, 3, RESOLVER)) for n in (1, 2, 3)]
    largest = max(seconds(cell) for cell in cells() if cell.kind == "training") + 0.4
    assert max(loads) - min(loads) <= largest


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Two shards with records of a training, an attack on it, and another attack; and where to put them."""
    made = training()
    for cell in (made, attack(CheckpointWeights(training=made.id, round=2))):
        answer(cell, tmp_path / "one")
    answer(attack(), tmp_path / "two")
    for name in ("one", "two"):
        (tmp_path / name / "asked.json").write_text("{}\n")
    return tmp_path / "one", tmp_path / "two", tmp_path / "all"


def attacked(run: Path) -> Path:
    """The file of the run's one attack with arrays."""
    return next(
        records.record_path(run, one.id)
        for one in records.records(run)
        if one.arrays and one.status == "done"
    )


def altered(path: Path, **changed: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


def test_shards_become_the_run_that_one_machine_would_have_made(folders: tuple[Path, Path, Path]) -> None:
    one, two, whole = folders
    found = merge(whole, [one, two])
    assert (found.new, found.same, found.better, found.differs, found.refused) == (3, 0, 0, [], [])
    for run in (one, two):
        for path in (path for path in run.rglob("*") if path.is_file()):
            assert (whole / path.relative_to(run)).read_bytes() == path.read_bytes()
    again = merge(whole, [two, one])
    assert (again.new, again.same, again.differs) == (0, 3, [])
    attack_on = attack(CheckpointWeights(training=training().id, round=2), defense=entry("defenses", "prune"))
    assert run_cell(attack_on, Place(run=whole), MEMORY).status == "done"  # the checkpoint came along


def test_a_finished_record_takes_the_place_of_one_that_crashed(folders: tuple[Path, Path, Path]) -> None:
    one, _, whole = folders
    merge(whole, [one])
    path = attacked(whole)
    altered(path, status="crashed", reason="it fell", source={"bench": {}})
    found = merge(whole, [one])
    assert (found.better, found.same) == (1, 1)
    assert records.read(path).status == "done"
    assert len(list((whole / "kept").iterdir())) == 1
    altered(path, status="crashed", reason="it fell again")  # by the same code
    assert merge(whole, [one]).better == 1
    assert len(list((whole / "kept").iterdir())) == 2
    altered(attacked(one), status="crashed", reason="it fell")
    assert "crashed, not done" in merge(whole, [one]).differs[0]
    assert records.read(path).status == "done"


def test_two_answers_to_one_question_are_told_and_the_first_stays(folders: tuple[Path, Path, Path]) -> None:
    one, _, whole = folders
    merge(whole, [one])
    path = attacked(one)
    summary = records.read(path).summary
    altered(path, summary=summary | {"asr": 0.123})
    before = records.record_path(whole, path.stem).read_bytes()
    assert "other figures from the same code" in merge(whole, [one]).differs[0]
    altered(path, source={"bench": {"version": "0"}})
    assert "answered by other code" in merge(whole, [one]).differs[0]
    assert records.record_path(whole, path.stem).read_bytes() == before


def break_arrays(run: Path) -> None:
    path = next((run / "arrays").iterdir())
    with np.load(path) as archive:
        arrays = dict(archive)
    np.savez_compressed(path, **{name: value + 1 for name, value in arrays.items()})


def in_place_of(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def bomb(run: Path) -> None:
    path = next((run / "arrays").iterdir())
    with path.open("wb") as file:
        np.savez_compressed(file, truth=np.zeros((2**15, 2**14), np.float32))  # 2 GiB in 2 MB


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda run: altered(attacked(run), id="0" * 64), "not the hash of its cell"),
        (lambda run: altered(attacked(run), status="fine"), "status 'fine'"),
        (lambda run: altered(attacked(run), arrays="../../etc/passwd"), "'../../etc/passwd' is no content hash"),
        (lambda run: altered(attacked(run), arrays="0" * 64), "cannot be read (No such file"),
        (break_arrays, "not those that it names"),
        (bomb, "more than the"),
        (lambda run: attacked(run).write_text("[" * 10**5), "not a record"),
        (lambda run: attacked(run).write_text('{"x": "' + "a" * 2**23 + '"}'), "(more than 8388608 bytes)"),
        (lambda run: altered(attacked(run), status=[]), "its status has another type"),
        (lambda run: altered(attacked(run), summary=[]), "its summary has another type"),
        (lambda run: in_place_of(attacked(run), os.mkfifo), "cannot be read (no plain file)"),
        (lambda run: in_place_of(attacked(run), lambda path: path.symlink_to("/nowhere")), "(No such file"),
        (lambda run: in_place_of(attacked(run), lambda path: path.symlink_to("/dev/zero")), "(no plain file)"),
        (lambda run: in_place_of(next((run / "arrays").iterdir()), os.mkfifo), "no plain file"),
        (lambda run: attacked(run).rename(run / "records" / f"{'0' * 64}.json"), "another id than its file"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_and_the_rest_comes(
    folders: tuple[Path, Path, Path], harm: Any, why: str
) -> None:
    one, two, whole = folders
    harm(one)
    found = merge(whole, [one, two])
    assert len(found.refused) == 1
    assert why in found.refused[0]
    assert found.new == 2
    assert len(list((whole / "arrays").iterdir())) == 1


def test_a_checkpoint_that_was_changed_is_refused(folders: tuple[Path, Path, Path]) -> None:
    one, _, whole = folders
    path = next((one / "weights").rglob("round-2.safetensors"))
    path.write_bytes(path.read_bytes() + b" ")
    assert "checkpoint of round 2 is not the one" in merge(whole, [one]).refused[0]
    path.unlink()
    assert "round-2.safetensors cannot be read (No such file" in merge(whole, [one]).refused[0]
    assert not (whole / "weights").exists()


def test_a_training_whose_checkpoints_make_no_sense_is_refused(folders: tuple[Path, Path, Path]) -> None:
    one, _, whole = folders
    path = records.record_path(one, training().id)
    for number, wrong in enumerate(({"9" * 5000: "x"}, {"1": None}, [1], None, {"-1": "x"})):
        altered(path, summary={"checkpoints": wrong})
        (line,) = merge(whole / str(number), [one]).refused
        assert line.startswith(str(path))


def test_names_of_a_stranger_are_shown_sanitized(folders: tuple[Path, Path, Path]) -> None:
    one, _, whole = folders
    path = attacked(one)
    cell = json.loads(path.read_text())["cell"]
    altered(path, cell=cell | {"point": "\x1b[2J\u202e<script>" + "x" * 10**5})
    (line,) = merge(whole, [one]).refused
    assert line.isprintable()
    assert len(line) <= 500


def test_the_command_says_what_came_and_what_did_not(folders: tuple[Path, Path, Path]) -> None:
    one, two, whole = folders
    done = CliRunner().invoke(cli, ["merge", str(whole), str(one), str(two)])
    assert (done.exit_code, done.output) == (
        0, f"{whole}: 3 new records, 0 in place of lesser ones, 0 there before\n",
    )  # fmt: skip
    break_arrays(one)
    shutil.rmtree(whole)
    refused = CliRunner().invoke(cli, ["merge", str(whole), str(one), str(two)])
    assert refused.exit_code == 1
    assert "refused: " in refused.output
    with pytest.raises(RecordError, match="give the folders of runs"):
        merge(whole, [whole / "nowhere"])
    with pytest.raises(BenchError, match="into itself"):
        merge(whole, [whole])
    for wrong in ("4/3", "0/3", "1", "x/2", "1/0", "-1/2", "1/" + "9" * 5000):
        found = CliRunner().invoke(cli, ["run", "--matrix", "quickstart", "--shard", wrong])
        assert (found.exit_code, "it must be i/n" in found.output) == (2, True)
