"""The trajectory: the way to a reconstruction, from the attack through the record to the image."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.command import output
from tests.records import attack_record, unfinished

from bench.answer.context import Memory, RunContext
from bench.answer.run import run
from bench.attacks.base import closed_form
from bench.attacks.priors_only import MeanPicture
from bench.cell import AttackCell, DataRef, Entry, Federated
from bench.cli.show import command
from bench.datasets.base import content_hash
from bench.datasets.digits import Digits
from bench.kinds.images import IMAGE
from bench.kinds.tables import TABLE
from bench.pictures import trajectory
from bench.record import store as records
from bench.record.schema import Trajectory
from bench.trip import Budget, Reading, Reconstruction

SIDE, GAP, HEAD, LINE = 56, 6, 46, 20
MARKS = (1, 2, 4, 7)


def pixels(image: Image.Image | None) -> np.ndarray:
    assert image is not None
    return np.asarray(image)


def left(column: int, marks: int) -> int:
    """Where a column begins; the truth, after the last mark, two gaps farther off."""
    return GAP + column * (SIDE + GAP) + (2 * GAP if column == marks else 0)


def tile(page: np.ndarray, row: int, column: int, marks: int) -> np.ndarray:
    top, start = HEAD + row * (SIDE + GAP), left(column, marks)
    return page[top : top + SIDE, start : start + SIDE]


def flat(shades: Any, side: int = 8) -> np.ndarray:
    """Examples of one shade each: the shades' shape, then (1, side, side)."""
    return np.broadcast_to(np.asarray(shades)[..., None, None, None] / 255, (*np.shape(shades), 1, side, side))


def test_rows_are_examples_columns_the_marks_and_the_truth_is_last() -> None:
    shades = np.arange(3 * 2).reshape(3, 2, 1) * 10
    page = pixels(trajectory.over_iterations(flat([[200], [210]]), flat(shades), (1, 2, 300), IMAGE))
    assert page.shape == (HEAD + 2 * (SIDE + GAP), left(3, 3) + SIDE + GAP, 3)
    for row in range(2):
        for column in range(3):
            assert (tile(page, row, column, 3) == shades[column, row, 0]).all()
        assert (tile(page, row, 3, 3) == 200 + 10 * row).all()


def test_every_column_has_its_label_and_no_two_touch() -> None:
    marks = (1, 16, 1024, 2_000_000)
    page = pixels(trajectory.over_iterations(flat([[0]]), flat(np.zeros((4, 1, 1))), marks, IMAGE))
    ink = np.asarray((page[HEAD - LINE : HEAD] < 255).any(axis=(0, 2)))
    widths = [ink[left(n, 4) : left(n, 4) + SIDE].sum() for n in range(5)]
    assert min(widths) > 0
    assert widths[0] < widths[1] < widths[2] < widths[3], "a longer number takes more room"
    for n in range(5):
        middle = np.flatnonzero(ink[left(n, 4) : left(n, 4) + SIDE]).mean()
        assert abs(middle - SIDE / 2) < 3
        ink[left(n, 4) : left(n, 4) + SIDE] = False
    assert not ink.any(), "no ink between the columns"
    assert (page[: HEAD - LINE] < 255).any(), "what the numbers count"


def test_narrow_examples_get_columns_as_wide_as_their_labels() -> None:
    thin = np.zeros((1, 1, 1, 48, 4))
    page = pixels(trajectory.over_iterations(thin, np.zeros((2, *thin.shape)), (1_000_000, 2_000_000), IMAGE))
    ink = np.asarray((page[HEAD - LINE : HEAD] < 255).any(axis=(0, 2)))
    blank = np.flatnonzero(~ink)
    runs = np.split(blank, np.flatnonzero(np.diff(blank) > 1) + 1)
    assert sum(len(run) >= GAP for run in runs) >= 2, "a gap between any two of three labels"
    assert not ink[-1] and not ink[0]


def test_what_is_not_a_number_is_marked_where_it_begins() -> None:
    page = pixels(trajectory.over_iterations(flat([[9.0]]), flat([[[50.0]], [[np.nan]], [[600.0]]]), (1, 2, 3), IMAGE))
    assert (tile(page, 0, 0, 3) == 50).all()
    assert len(set(tile(page, 0, 1, 3)[0, 0].tolist())) > 1, "a shade of grey would pass for a value"
    assert (tile(page, 0, 2, 3) == 255).all()


def test_first_examples_of_the_readings_that_have_a_trajectory_come_first_and_eight_at_most() -> None:
    shades = np.arange(20 * 3).reshape(20, 3)
    some = pixels(trajectory.over_iterations(flat(shades), flat(shades[None, :2]), (1,), IMAGE))
    assert [tile(some, row, 1, 1)[0, 0, 0] for row in range(6)] == [0, 3, 1, 4, 2, 5]
    assert (some[:, left(0, 1) : left(0, 1) + SIDE][HEAD:] == some[:, left(1, 1) :][HEAD:, :SIDE]).all()
    many = pixels(trajectory.over_iterations(flat(shades), flat(shades[None]), (1,), IMAGE))
    assert many.shape[0] == HEAD + 8 * (SIDE + GAP)


def test_a_table_row_is_a_block_of_cells() -> None:
    rows = np.array([0.0, 0.2, 0.4, 0.6, 0.8]).reshape(1, 1, 5)
    page = pixels(trajectory.over_iterations(rows, rows[None] / 2, (1,), TABLE))
    assert tile(page, 0, 1, 1)[9::19, 9::19, 0].tolist() == [[0, 51, 102], [153, 204, 255], [255, 255, 255]]
    assert tile(page, 0, 0, 1)[9, 9::19, 0].tolist() == [0, 26, 51]


def test_nothing_to_show_is_none_and_what_does_not_fit_is_refused() -> None:
    truth = flat([[0], [0]])
    assert trajectory.over_iterations(truth[:0], truth[None, :0], (1,), IMAGE) is None
    for way, marks in ((truth[None], (1, 2)), (np.concatenate([truth, truth])[None], (1,)), (truth, (1, 2))):
        with pytest.raises(ValueError, match=r"trajectory must be \(mark, reading, example, \*shape\)"):
            trajectory.over_iterations(truth, way, marks, IMAGE)


def test_a_record_without_a_trajectory_has_no_image(tmp_path: Path) -> None:
    arrays = records.write_arrays(tmp_path, {"truth": flat([[0]]), "reconstruction": flat([[0]])})
    record = attack_record(result={"arrays": arrays})
    way = Trajectory(losses=(1.0,), evaluations=(1,))
    assert trajectory.of_record(tmp_path, record) is None
    assert trajectory.of_record(tmp_path, unfinished(record, "n/a", "because")) is None
    with_losses = attack_record(result={"arrays": arrays, "trajectory": way})
    assert trajectory.of_record(tmp_path, with_losses) is None


def wandering(reading: Reading, budget: Budget) -> Reconstruction:
    """Noise at the end, and a trajectory that comes to it from black by a quarter a mark."""
    torch.manual_seed(5)
    end = torch.rand(len(reading), reading.examples, *reading.shape)
    losses = tuple((mark, tuple(float(n + 8 - mark) for n in range(len(reading)))) for mark in MARKS)
    way = torch.stack([end * step / 4 for step in range(1, 5)])
    return replace(closed_form(reading, end), history=losses, trajectory=way)


@pytest.fixture
def cell() -> AttackCell:
    return AttackCell(
        dataset=DataRef(name="digits", sha256=content_hash(Digits().load(()))),
        model=Entry(name="mlp"),
        defense=Entry(name="none"),
        federated=Federated(batch=3, clients=20, per_round=5),
        attack=Entry(name="prior-mean"),
        point="type-1",
        readings=10,
    )


def test_from_an_attack_to_a_picture(tmp_path: Path, cell: AttackCell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MeanPicture, "reconstruct", lambda _, reading, budget, key: wandering(reading, budget))
    record = run(cell, RunContext(run=tmp_path), Memory())
    assert record.status == "done", record.reason
    assert record.attack is not None
    losses = tuple(4.5 + 8 - mark for mark in MARKS)
    assert record.attack.trajectory == Trajectory(losses=losses, evaluations=MARKS)
    arrays = records.read_arrays(tmp_path, record.arrays or "")
    pairings = [[example.matched for example in reading.examples] for reading in record.attack.readings]
    assert any(pairing != [0, 1, 2] for pairing in pairings[:8]), "the pairing must have something to do"
    assert arrays["trajectory"].shape == (4, 8, 3, 1, 8, 8)
    assert arrays["trajectory"].dtype == np.float32
    for step, at_mark in enumerate(arrays["trajectory"], 1):
        assert at_mark == pytest.approx(arrays["reconstruction"][:8] * step / 4, abs=1e-6)

    records.write(tmp_path, record)
    path = tmp_path / "pictures" / f"{record.id}-iterations.png"
    assert f"over iterations:  {path}" in output(command, record.id[:8], tmp_path)
    with Image.open(path) as image:
        assert (np.asarray(image) == pixels(trajectory.of_record(tmp_path, record))).all()
    assert json.loads(output(command, record.id[:8], tmp_path, "--json"))["over_iterations"] == str(path)


def test_without_a_trajectory_nothing_is_said_of_one(tmp_path: Path, cell: AttackCell) -> None:
    record = run(cell, RunContext(run=tmp_path), Memory())
    assert record.attack is not None and record.attack.trajectory is None
    assert set(records.read_arrays(tmp_path, record.arrays or "")) == {"truth", "reconstruction"}
    records.write(tmp_path, record)
    assert "over iterations" not in output(command, record.id[:8], tmp_path)
    assert [path.name for path in (tmp_path / "pictures").iterdir()] == [f"{record.id}.png"]


def test_a_trajectory_that_does_not_fit_its_history_is_the_attacks_fault(
    tmp_path: Path, cell: AttackCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(self: MeanPicture, reading: Reading, budget: Budget, key: Any) -> Reconstruction:
        found = wandering(reading, budget)
        return replace(found, history=found.history[:3])

    monkeypatch.setattr(MeanPicture, "reconstruct", short)
    record = run(cell, RunContext(run=tmp_path), Memory())
    assert record.status == "crashed"
    assert "trajectory (4, 10, 3, 1, 8, 8); expected (3 marks" in (record.reason or "")
