"""Uploading to MLflow: each record once, whatever breaks, and private pictures stay at home.

The store is a real one, sqlite in a temporary folder; a broken one is the same client with one call that raises.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tests.records import SHADES, UPLOADED, cell_ids, to_upload, write

from bench.cell import Entry, TrainingCell
from bench.cli.sync import command as sync
from bench.record import store as records
from bench.record.schema import TrainingResult, Trajectory
from bench.tracking import store, upload
from bench.tracking.pictures import GRID, TRAJECTORY
from bench.tracking.store import UploadResult


@pytest.fixture
def run(store_folder: Path, request: pytest.FixtureRequest) -> Path:
    """An empty run of its own in that folder, and so an experiment of its own."""
    folder = store_folder / request.node.name[:60].replace("[", "-").replace("]", "")
    (folder / "records").mkdir(parents=True)
    return folder


def target(run: Path, **changes: Any) -> upload.Target:
    return replace(upload.open_target(run), **changes)


def send(run: Path, *cells: str, **changes: Any) -> UploadResult:
    """Upload these cells' records, or all."""
    return upload.send(target(run, **changes), run, cells or cell_ids(run))


def uploaded(run: Path) -> list[Any]:
    """The store's runs of this run's cells, newest first."""
    return upload.search(target(run), "")


def rows_of(run: Path) -> list[Any]:
    return upload.search(upload.beside(target(run), store.board_name(run, "digits")), "")


class Broken:
    """A client of which one call raises, `times` times; `silent` ones do not even say that they live."""

    def __init__(self, client: Any, call: str, error: BaseException, *, times: int = 10**6, silent: bool) -> None:
        self._client, self._call, self._error = client, call, error
        self._left, self._silent = times, silent

    def __getattr__(self, name: str) -> Any:
        if self._silent and name == "get_experiment":
            raise self._error
        if name == self._call and self._left > 0:
            self._left -= 1
            raise self._error
        return getattr(self._client, name)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


def test_one_record_is_one_run_with_everything_in_it(run: Path) -> None:
    path = write(run, "a1")
    os.utime(path, (1_700_000_000, 1_700_000_000))
    assert send(run) == UploadResult(count=1)
    (found,) = uploaded(run)
    assert found.info.run_name == "cpl/plain × prune(share=0.7) @ type-1, digits dlg-lenet"
    assert found.info.status == "FINISHED"
    assert (found.info.start_time, found.info.end_time) == (1_699_999_997_500, 1_700_000_000_000)
    metrics = {"leak/asr": 0.5, "leak/psnr_db_median": 21.0, "cost/wall_seconds": 2.5}
    assert metrics.items() <= found.data.metrics.items()
    assert found.data.params["defense.share"] == "0.7"
    assert found.data.tags["bench.point"] == "type-1"
    assert found.data.tags["bench.run"] == run.name
    (picture,) = target(run).client.list_artifacts(found.info.run_id)
    assert picture.path == found.data.tags["bench.picture"] == GRID
    address = f"(get-artifact?path={GRID}&run_uuid={found.info.run_id})"
    assert address in found.data.tags["mlflow.note.content"]


def test_more_than_one_request_holds_goes_in_several(run: Path) -> None:
    cell = TrainingCell(
        dataset=UPLOADED.dataset,
        model=UPLOADED.model,
        federated=UPLOADED.federated,
        rounds=2000,
        defense=Entry(name="own", params={f"p{number}": number for number in range(250)}),
    )
    curve = tuple((step, step / 2000) for step in range(2000))
    records.write(
        run, to_upload(cell=cell, result=TrainingResult(accuracy=0.9, curve=curve, rounds=2000, diverged=False))
    )
    assert send(run) == UploadResult(count=1)
    (found,) = uploaded(run)
    assert found.data.params["defense.p249"] == "249"
    assert len(target(run).client.get_metric_history(found.info.run_id, "utility/curve")) == 2000


def test_again_adds_nothing_even_without_the_notes(run: Path) -> None:
    for cell_id in ("a1", "a2"):
        write(run, cell_id)
    assert send(run) == UploadResult(count=2)
    assert send(run) == UploadResult(skipped=2)
    (run / "synced" / "a1.json").unlink()
    assert send(run) == UploadResult(skipped=2)
    assert store.unsynced(run, store.default_uri(run)) == 0
    assert len(uploaded(run)) == 2


def test_only_the_named_cells(run: Path) -> None:
    for cell_id in ("a1", "a2", "a3"):
        write(run, cell_id)
    seen: list[UploadResult] = []
    assert upload.send(target(run), run, ["a3", "a1"], progress=seen.append) == UploadResult(count=2)
    assert seen == [UploadResult(count=1, left=1), UploadResult(count=2)]
    assert {found.data.tags["bench.cell"] for found in uploaded(run)} == {"a1", "a3"}


def test_a_changed_record_supersedes_the_old_one(run: Path) -> None:
    write(run, "a1", asr=0.5)
    send(run)
    write(run, "a1", asr=0.6)
    assert send(run) == UploadResult(count=1)
    by_asr = {found.data.metrics["leak/asr"]: found for found in uploaded(run)}
    assert by_asr[0.5].data.tags["bench.superseded"] == by_asr[0.6].info.run_id
    assert "bench.superseded" not in by_asr[0.6].data.tags


@pytest.mark.parametrize("call", ["log_batch", "set_terminated", "set_tag"])
def test_a_crash_in_the_middle_leaves_one_run_after_all(run: Path, call: str) -> None:
    write(run, "a1", asr=0.4)
    send(run)
    write(run, "a1", asr=0.5)
    opened = target(run)
    crashing = replace(opened, client=Broken(opened.client, call, KeyboardInterrupt(), silent=False))
    with pytest.raises(KeyboardInterrupt):
        upload.send(crashing, run, ["a1"])
    again = send(run)
    assert again == (UploadResult(skipped=1) if call == "set_tag" else UploadResult(count=1))
    current = [found for found in uploaded(run) if "bench.superseded" not in found.data.tags]
    assert [(found.info.status, found.data.metrics["leak/asr"]) for found in current] == [("FINISHED", 0.5)]
    assert len(uploaded(run)) == 2


@pytest.mark.usefixtures("hasty")
def test_a_store_that_dies_delays_and_loses_nothing(run: Path) -> None:
    for cell_id in ("a1", "a2", "a3"):
        write(run, cell_id)
    opened = target(run)
    down = Broken(opened.client, "create_run", ConnectionError("gone"), silent=True)
    assert upload.send(opened, run, ["a1"]) == UploadResult(count=1)
    result = upload.send(replace(opened, client=down), run, ["a1", "a2", "a3"])
    assert (result.skipped, result.left, result.failed) == (1, 2, 0)
    assert result.reason and result.reason.endswith("ConnectionError: gone")
    assert send(run) == UploadResult(count=2, skipped=1)


def test_one_dropped_connection_is_not_the_end(run: Path) -> None:
    write(run, "a1")
    opened = target(run)
    once = Broken(opened.client, "set_terminated", ConnectionError("dropped"), times=1, silent=False)
    assert upload.send(replace(opened, client=once), run, ["a1"]) == UploadResult(count=1)
    assert [found.info.status for found in uploaded(run)] == ["FINISHED"]


def test_a_record_that_the_store_refuses_stops_no_other(run: Path) -> None:
    for cell_id in ("a1", "a2", "a3"):
        write(run, cell_id)
    (run / "records" / "a2.json").write_text("{")
    opened = target(run)
    picky = Broken(opened.client, "create_run", ValueError("not this one"), times=2, silent=False)
    result = upload.send(replace(opened, client=picky), run, ["a1", "a2", "a3"])
    assert (result.count, result.failed, result.left) == (1, 2, 0)
    assert {found.data.tags["bench.cell"] for found in uploaded(run)} == {"a3"}


def test_private_pictures_stay_unless_asked_for(run: Path) -> None:
    write(run, "a1", result={"private": True})
    send(run)
    (found,) = uploaded(run)
    client = target(run).client
    assert found.data.tags["bench.picture"] == "withheld: private data"
    assert client.list_artifacts(found.info.run_id) == []
    assert not list((run.parent / "mlartifacts" / run.name).rglob("*.png"))

    write(run, "a2", result={"private": True})
    send(run, "a2", include_pictures=True)
    (named,) = (found for found in uploaded(run) if found.data.tags["bench.cell"] == "a2")
    assert [item.path for item in client.list_artifacts(named.info.run_id)] == [GRID]


def test_the_trajectory_goes_up_beside_the_grid_and_stays_where_that_stays(run: Path) -> None:
    result = {"trajectory": Trajectory(losses=(4.0, 0.5), evaluations=(1, 30))}
    arrays = {"trajectory": np.stack([0 * SHADES, SHADES])}
    write(run, "a1", arrays=arrays, result=result)
    write(run, "a2", arrays=arrays, result={**result, "private": True})
    assert send(run) == UploadResult(count=2)
    client = target(run).client
    found = {one.data.tags["bench.cell"]: one for one in uploaded(run)}
    names = {item.path for item in client.list_artifacts(found["a1"].info.run_id)}
    assert names == {GRID, TRAJECTORY}
    assert f"path={TRAJECTORY}&" in found["a1"].data.tags["mlflow.note.content"]
    curve = client.get_metric_history(found["a1"].info.run_id, "leak/loss")
    assert [(point.step, point.value) for point in curve] == [(1, 4.0), (30, 0.5)]
    assert client.list_artifacts(found["a2"].info.run_id) == []

    assert send(run, include_pictures=True) == UploadResult(count=1, skipped=1)
    names = {item.path for item in client.list_artifacts(found["a2"].info.run_id)}
    assert names == {GRID, TRAJECTORY}


@pytest.mark.parametrize("noted", [True, False])
def test_a_withheld_picture_is_added_to_its_run_when_asked_for(run: Path, noted: bool) -> None:
    write(run, "a1", result={"private": True})
    write(run, "a2")
    send(run)
    (before,) = (found for found in uploaded(run) if found.data.tags["bench.cell"] == "a1")
    if not noted:
        (run / "synced" / "a1.json").unlink()
    asked = CliRunner().invoke(sync, [str(run), "--include-pictures"])
    assert asked.exit_code == 0, asked.output
    assert "1 uploaded, 1 there already" in asked.output
    assert send(run, include_pictures=True) == UploadResult(skipped=2)
    (after,) = (found for found in uploaded(run) if found.data.tags["bench.cell"] == "a1")
    assert after.info.run_id == before.info.run_id
    assert after.info.status == "FINISHED"
    assert after.data.tags["bench.picture"] == GRID
    (picture,) = target(run).client.list_artifacts(after.info.run_id)
    assert picture.path == GRID


def test_a_run_deleted_in_the_ui_gets_no_picture(run: Path) -> None:
    write(run, "a1", result={"private": True})
    send(run)
    (found,) = uploaded(run)
    target(run).client.delete_run(found.info.run_id)
    assert send(run, include_pictures=True) == UploadResult(skipped=1)
    assert target(run).client.list_artifacts(found.info.run_id) == []


class Elsewhere:
    """A client whose store keeps artifacts at another kind of address; what it was given to upload."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.given: dict[str, list[str]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def create_run(self, *given: Any, **named: Any) -> Any:
        made = self._client.create_run(*given, **named)
        info = SimpleNamespace(run_id=made.info.run_id, artifact_uri="mlflow-artifacts:/1/x/artifacts")
        return SimpleNamespace(info=info)

    def log_artifacts(self, run_id: str, folder: str) -> None:
        self.given[run_id] = sorted(path.name for path in Path(folder).iterdir())


def test_artifacts_that_are_no_files_of_this_machine_go_through_the_client(run: Path) -> None:
    write(run, "a1")
    opened = target(run)
    elsewhere = Elsewhere(opened.client)
    assert upload.send(replace(opened, client=elsewhere), run, ["a1"]) == UploadResult(count=1)
    assert list(elsewhere.given.values()) == [[GRID]]


def test_the_numbers_go_up_where_the_picture_cannot(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(folder: Path, files: object) -> None:
        raise PermissionError("not on this machine")

    write(run, "a1")
    with monkeypatch.context() as patch:
        patch.setattr(upload, "_write", denied)
        assert send(run, "a1") == UploadResult(count=1)
    write(run, "a2", result={"arrays": "0" * 64})
    assert send(run, "a2") == UploadResult(count=1)
    tags = {found.data.tags["bench.cell"]: found.data.tags["bench.picture"] for found in uploaded(run)}
    assert tags["a1"] == "not uploaded: not on this machine"
    assert tags["a2"].startswith("not drawn: ")


def test_what_did_not_run_is_a_run_that_says_so(run: Path) -> None:
    write(run, "a1", status="n/a", reason="too many unknowns")
    write(run, "a2", status="crashed", reason="killed")
    assert send(run) == UploadResult(count=2)
    assert {(f.info.status, f.data.tags["bench.reason"]) for f in uploaded(run)} == {
        ("KILLED", "too many unknowns"),
        ("FAILED", "killed"),
    }


def test_a_lost_store_is_made_again_from_the_records(run: Path) -> None:
    """Notes that name runs of a database that is gone must not keep the records out of the new one."""
    write(run, "a1")
    send(run)
    uri = store.default_uri(run)
    note = store.read_note(run, "a1", uri)
    assert note is not None
    (found,) = uploaded(run)
    target(run).client.set_tag(found.info.run_id, "bench.cell", "of another")
    store.write_note(run, "a1", uri, replace(note, run="0" * 32))
    assert send(run) == UploadResult(count=1)


def test_what_was_deleted_in_the_ui_stays_deleted(run: Path) -> None:
    write(run, "a1")
    send(run)
    (found,) = uploaded(run)
    target(run).client.delete_run(found.info.run_id)
    assert send(run) == UploadResult(skipped=1)
    assert uploaded(run) == []


def test_a_deleted_experiment_is_taken_back(run: Path) -> None:
    write(run, "a1")
    send(run)
    opened = target(run)
    opened.client.delete_experiment(opened.experiment_id)
    assert send(run) == UploadResult(skipped=1)
    assert len(uploaded(run)) == 1


def test_nothing_follows_the_working_directory(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(run, "a1")
    send(run)
    assert list(tmp_path.iterdir()) == []


def test_sync_says_what_it_did(run: Path) -> None:
    write(run, "a1")
    first = CliRunner().invoke(sync, [str(run), "--json"])
    assert first.exit_code == 0, first.output
    assert json.loads(first.output) == {
        "run": str(run),
        "uri": store.default_uri(run),
        "count": 1,
        "skipped": 0,
        "failed": 0,
        "left": 0,
        "rows": 1,
        "reason": None,
    }
    again = CliRunner().invoke(sync, [str(run)])
    assert again.exit_code == 0
    (row,) = rows_of(run)
    assert row.info.run_name == "prune"
    assert "0 uploaded, 1 there already, 0 failed, 0 left; 0 rows of the board written" in again.output


def test_sync_to_a_server_that_is_down_is_one_line_and_exit_1(run: Path) -> None:
    write(run, "a1")
    result = CliRunner().invoke(sync, [str(run), "--tracking-uri", "http://u:secret@127.0.0.1:9"])
    assert result.exit_code == 1
    assert "1 left" in result.output
    assert "secret" not in result.output
    assert "Traceback" not in result.output


_OF_TWO = """
import sys
from bench.cli.sync import command
command([sys.argv[1]])
"""


@pytest.mark.slow
def test_processes_that_meet_on_a_fresh_store(tmp_path: Path) -> None:
    """Two runs, one of them twice: no schema race, no experiment race, no record or row twice, nothing mixed."""
    for name in ("x", "y"):
        for number in range(10):
            write(tmp_path / name, f"a{number}")
    children = [
        subprocess.Popen([sys.executable, "-P", "-c", _OF_TWO, str(tmp_path / name)], stdout=subprocess.PIPE)
        for name in ("x", "y", "x")
    ]
    said = [child.communicate(timeout=300)[0].decode() for child in children]
    assert [child.returncode for child in children] == [0, 0, 0], said
    assert all("0 failed, 0 left" in line for line in said), said
    for name in ("x", "y"):
        found = uploaded(tmp_path / name)
        assert sorted(one.data.tags["bench.cell"] for one in found) == [f"a{number}" for number in range(10)]
        assert {one.data.tags["bench.run"] for one in [*found, *rows_of(tmp_path / name)]} == {name}
        assert len(rows_of(tmp_path / name)) == 1


_LOOKUPS = """
import socket, sys
from pathlib import Path
asked = []
def refuse(host, *rest, **more):
    asked.append(host)
    raise socket.gaierror("no look-ups here")
socket.getaddrinfo = refuse
if sys.argv[2] == "bench":
    from bench.tracking.sync import sync
    print(sync(Path(sys.argv[1])))
else:
    import mlflow
    mlflow.set_tracking_uri("sqlite:///" + sys.argv[1] + "/plain.db")
    with mlflow.start_run():
        mlflow.log_metric("a", 1)
import time; time.sleep(2)
print("asked", asked)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("by", "quiet"), [("bench", True), ("mlflow", False)])
def test_telemetry_is_off(tmp_path: Path, by: str, quiet: bool) -> None:
    """With every sign of a test or a CI taken away, at which MLflow is quiet by itself: see the control."""
    write(tmp_path / "r", "a1")
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    said = subprocess.run(
        [sys.executable, "-P", "-c", _LOOKUPS, str(tmp_path / "r"), by],
        env=kept,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    ).stdout
    assert said.rstrip().endswith("asked []") == quiet, said
