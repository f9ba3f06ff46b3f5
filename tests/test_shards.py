"""A matrix in shards, and run folders merged again: nothing twice, nothing lost, nothing taken on trust."""

import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tests.cells import MEMORY, RESOLVER, alter, answer, attack, crash, entry, training

from bench.answer.context import RunContext
from bench.answer.run import run
from bench.cell import AnyCell, CheckpointWeights
from bench.cli.main import cli
from bench.errors import BenchError, DataError, RecordError
from bench.matrix.expand import PlannedCell, expand
from bench.matrix.read import read
from bench.record import store as records
from bench.sweep.estimates import Estimates
from bench.sweep.merge import merge
from bench.sweep.plan import Resolver, shard_of


def cells() -> list[AnyCell]:
    """Four trainings with two attacks each, and eight groups of three on untrained weights."""
    trainings = [training(seed=seed) for seed in range(4)]
    cells: list[AnyCell] = [*trainings]
    cells += [
        attack(CheckpointWeights(training=trained.id, round=2), defense=entry("defenses", name))
        for trained in trainings
        for name in ("none", "prune")
    ]
    cells += [
        attack(seed=seed, defense=entry("defenses", name), readings=1 + seed)
        for seed in range(8)
        for name in ("none", "prune", "low-rank")
    ]
    return cells


@pytest.mark.parametrize("count", [1, 2, 3, 7, 30])
def test_shards_are_a_partition_that_keeps_together_what_shares_work(count: int) -> None:
    planned = [PlannedCell(cell, None) for cell in cells()]
    parts = [shard_of(planned, number, count, RESOLVER) for number in range(1, count + 1)]
    ids = [item.cell.id for part in parts for item in part]
    assert sorted(ids) == sorted(item.cell.id for item in planned)
    at = {item.cell.id: number for number, part in enumerate(parts) for item in part}
    for item in planned:
        cell = item.cell
        if cell.kind == "attack" and isinstance(cell.weights, CheckpointWeights):
            assert at[cell.id] == at[cell.weights.training]
    for seed in range(8):
        shards = {
            at[cell.id]
            for cell in cells()
            if cell.kind == "attack" and cell.seed == seed and not isinstance(cell.weights, CheckpointWeights)
        }
        assert len(shards) == 1 or count == 30  # there a group is more than half a shard


def test_shards_take_about_equal_time() -> None:
    planned = [PlannedCell(cell, None) for cell in cells()]
    seconds = Estimates(RESOLVER.shape).seconds
    loads = [sum(seconds(item.cell) for item in shard_of(planned, n, 3, RESOLVER)) for n in (1, 2, 3)]
    largest = max(seconds(cell) for cell in cells() if cell.kind == "training") + 0.4
    assert max(loads) - min(loads) <= largest


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Two shards with records of a training, an attack on it, and another attack; and where to put them."""
    trained = training()
    for cell in (trained, attack(CheckpointWeights(training=trained.id, round=2))):
        answer(cell, tmp_path / "one")
    answer(attack(), tmp_path / "two")
    for name in ("one", "two"):
        (tmp_path / name / "request.json").write_text("{}\n")
    return tmp_path / "one", tmp_path / "two", tmp_path / "all"


def attacked(run: Path) -> Path:
    """The file of the run's one attack with arrays."""
    return next(records.record_path(run, record.id) for record in records.records(run) if record.attack)


def test_shards_become_the_run_that_one_machine_would_have_made(folders: tuple[Path, Path, Path]) -> None:
    one, two, whole = folders
    merged = merge(whole, [one, two])
    assert (merged.new, merged.same, merged.better, merged.differs, merged.refused) == (3, 0, 0, [], [])
    for shard in (one, two):
        for path in (path for path in shard.rglob("*") if path.is_file()):
            assert (whole / path.relative_to(shard)).read_bytes() == path.read_bytes()
    again = merge(whole, [two, one])
    assert (again.new, again.same, again.differs) == (0, 3, [])
    attack_on = attack(CheckpointWeights(training=training().id, round=2), defense=entry("defenses", "prune"))
    assert run(attack_on, RunContext(run=whole), MEMORY).status == "done"  # the checkpoint came along


def test_a_finished_record_takes_the_place_of_one_that_crashed(folders: tuple[Path, Path, Path]) -> None:
    one, _, whole = folders
    merge(whole, [one])
    path = attacked(whole)
    crash(path, provenance__bench__version="0")
    merged = merge(whole, [one])
    assert (merged.better, merged.same) == (1, 1)
    assert records.read(path).status == "done"
    assert len(list((whole / "kept").iterdir())) == 1
    crash(path, "it fell again")  # by the same code
    assert merge(whole, [one]).better == 1
    assert len(list((whole / "kept").iterdir())) == 2
    crash(attacked(one))
    assert "crashed, not done" in merge(whole, [one]).differs[0]
    assert records.read(path).status == "done"


def test_two_answers_to_one_cell_are_reported_and_the_first_stays(folders: tuple[Path, Path, Path]) -> None:
    one, _, whole = folders
    merge(whole, [one])
    path = attacked(one)
    alter(path, result__summary__evaluations_median=123.0)
    before = records.record_path(whole, path.stem).read_bytes()
    assert "other figures from the same code" in merge(whole, [one]).differs[0]
    alter(path, provenance__bench__version="0")
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
    """Arrays that declare 2 GiB, in their directory and in their header."""
    path, header = next((run / "arrays").iterdir()), io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (2**31,)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("truth.npy", header.getvalue())
    content = bytearray(path.read_bytes())
    at = content.rindex(b"PK\x01\x02")
    content[at + 24 : at + 28] = (2**31).to_bytes(4, "little")
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda run: alter(attacked(run), id="0" * 64), "not the hash of its cell"),
        (
            lambda run: attacked(run).write_text('{"schema": 1, "victims": [], "source": {}}'),
            "json: schema 1, this bench reads 2; delete it and run again",
        ),
        (lambda run: alter(attacked(run), status="fine"), "status: input should be 'done'"),
        (lambda run: alter(attacked(run), result__arrays="../../etc/passwd"), "is no content hash"),
        (lambda run: alter(attacked(run), result__arrays="0" * 64), "cannot be read (No such file"),
        (break_arrays, "not those that it names"),
        (bomb, "more than the"),
        (lambda run: attacked(run).write_text("[" * 10**5), "not a record"),
        (lambda run: attacked(run).write_text('{"x": "' + "a" * 2**23 + '"}'), "(more than 8388608 bytes)"),
        (lambda run: alter(attacked(run), status=[]), "status: "),
        (lambda run: alter(attacked(run), result__summary=[]), "summary: "),
        (lambda run: in_place_of(attacked(run), os.mkfifo), "cannot be read (no plain file)"),
        (lambda run: in_place_of(attacked(run), lambda path: path.symlink_to("/nowhere")), "(No such file"),
        (lambda run: in_place_of(attacked(run), lambda path: path.symlink_to("/dev/zero")), "(no plain file)"),
        (lambda run: in_place_of(next((run / "arrays").iterdir()), os.mkfifo), "no plain file"),
        (lambda run: attacked(run).rename(run / "records" / f"{'0' * 64}.json"), "another id than its file"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_rest_comes(
    folders: tuple[Path, Path, Path], harm: Any, reason: str
) -> None:
    one, two, whole = folders
    harm(one)
    merged = merge(whole, [one, two])
    assert len(merged.refused) == 1
    assert reason in merged.refused[0] and "\n" not in merged.refused[0]
    assert merged.new == 2
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
        alter(path, result__checkpoints=wrong)
        (line,) = merge(whole / str(number), [one]).refused
        assert line.startswith(str(path))


def test_names_of_a_stranger_are_shown_sanitized(folders: tuple[Path, Path, Path]) -> None:
    one, _, whole = folders
    path = attacked(one)
    cell = json.loads(path.read_text())["cell"]
    alter(path, cell=cell | {"point": "\x1b[2J\u202e<script>" + "x" * 10**5})
    (line,) = merge(whole, [one]).refused
    assert line.isprintable()
    assert len(line) <= 500


def test_the_command_says_what_came_and_what_did_not(folders: tuple[Path, Path, Path]) -> None:
    one, two, whole = folders
    done = CliRunner().invoke(cli, ["merge", str(whole), str(one), str(two)])
    assert (done.exit_code, done.output) == (0, f"{whole}: 3 new records, 0 in place of lesser ones, 0 there before\n")
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
        result = CliRunner().invoke(cli, ["run", "--matrix", "quickstart", "--shard", wrong])
        assert (result.exit_code, "it must be i/n" in result.output) == (2, True)


@pytest.mark.parametrize("preset", ["adaptive", "gaps", "quickstart"])
def test_shards_of_a_preset_are_of_equal_time(preset: str) -> None:
    """By the estimate, within a tenth; only what is one training's stays together whatever it takes."""
    resolver = Resolver(None)
    try:
        planned = expand(read(preset), resolver.data)
    except DataError:
        pytest.skip("the data sets are not here")
    fresh = Estimates(resolver.shape)
    loads = [
        sum(fresh.seconds(item.cell) for item in shard_of(planned, n, 8, resolver) if item.impossible is None)
        for n in range(1, 9)
    ]
    assert max(loads) <= 1.1 * sum(loads) / len(loads)
