"""Promise: after a suite's run its board is in MLflow, one's own row among the published; if it changes, made anew."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.boards import scored, shipped

from bench.record import store as records
from bench.record.schema import Record
from bench.tracking import boards, row_upload, store, upload


def mine(leaked: float) -> list[Record]:
    """What leaks behind a setting of one's own, in all conditions of the made-up suite."""
    cells = ((leaked, "type-2", 1), (leaked, "type-0", 1), (0.2, "type-0", 2))
    return [scored(rate, "mine", point, batch) for rate, point, batch in cells]


@pytest.fixture
def run(store_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    shipped(tmp_path / "reference", monkeypatch)
    folder = store_folder / request.node.name
    (folder / "records").mkdir(parents=True)
    (folder / "suite-standard.json").write_text(json.dumps({"suite": "v", "ranked": True}), "utf-8")
    for each in mine(0.5):
        records.write(folder, each)
    return folder


def board(target: upload.Target, run: Path) -> list[Any]:
    """The store's runs of the suite's board, the newest first."""
    return upload.search(upload.beside(target, store.board_name(run, "v")), "")


def test_the_board_of_a_suite_is_among_the_runs(run: Path, tmp_path: Path) -> None:
    target = upload.open_target(run, store.default_uri(run))
    row_upload.send(target, run)
    stored, *published = board(target, run)
    assert stored.info.run_name == stored.data.tags["bench.defense"] == "mine", "the newest"
    assert stored.data.tags["bench.rank"] == "2"
    assert stored.data.metrics["inside leaked"] == 0.5
    assert [one.info.run_name for one in published] == [
        "cdp · published",
        "noise · published",
        "prune · published",
        "none · published",
    ]
    note = stored.data.tags["mlflow.note.content"]
    assert "rank: 2 of 5 on v, between cdp and noise" in note
    files = {entry.path for entry in target.client.list_artifacts(stored.info.run_id)}
    assert {"board.html", "board.svg"} <= files
    row_upload.send(target, run)
    assert len(board(target, run)) == 5


def test_a_board_that_changed_takes_the_place_of_the_old_one(run: Path) -> None:
    target = upload.open_target(run, store.default_uri(run))
    row_upload.send(target, run)
    for each in mine(0.1):
        records.write(run, each)
    row_upload.send(target, run)
    stored, *published = board(target, run)
    assert (stored.data.metrics["inside leaked"], len(published)) == (0.1, 4)


def test_a_run_of_no_suite_has_no_board(run: Path) -> None:
    (run / "suite-standard.json").unlink()
    assert boards.of_run(run) == []
