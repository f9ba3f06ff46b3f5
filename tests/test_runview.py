"""What MLflow is given of a record: every axis, every finite number, and nothing it would refuse."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from bench.errors import BenchError, RecordError
from bench.record import store as records
from bench.record.store import Record, is_private
from bench.tracking import store, view

SHA = "f" * 64


def entry(name: str, **params: Any) -> dict[str, Any]:
    return {"name": name, "params": params}


def record(**changes: Any) -> Record:
    cell = {
        "kind": "attack",
        "dataset": {**entry("digits"), "sha256": "0" * 64, "subset": None},
        "model": entry("dlg-lenet"),
        "federated": {
            "algorithm": "fedavg",
            "clients": 100,
            "per_round": 10,
            "steps": 4,
            "batch": 3,
            "rate": 0.05,
            "partition": "two-shard",
            "client_examples": None,
        },
        "defense": entry("prune", share=0.7),
        "attack": entry("cpl", outer=300),
        "weights": {"kind": "file", "sha256": "1" * 64, "path": "/somewhere"},
        "knowledge": "plain",
        "labels": True,
        "repeated_readings": 5,
        "readings": 16,
        "evaluations": 500,
        "point": "type-1",
        "seed": 0,
        "draw": 1,
    }
    given: dict[str, Any] = {
        "id": "a1",
        "status": "done",
        "cell": cell,
        "source": {"sha256": "5" * 64, "protocol": "1"},
        "summary": {"asr": 0.5},
        "victims": [],
        "environment": {"device": "cpu"},
        "cost": {"wall_seconds": 3},
    }
    return Record(**{**given, **changes})


def test_name_says_the_cell_in_words() -> None:
    shown = view.view(record(), SHA)
    assert shown.name == "cpl/plain × prune(share=0.7) @ type-1, digits dlg-lenet"
    training = record(cell={"kind": "training", **{k: entry(k) for k in ("dataset", "model", "defense")}})
    assert view.view(training, SHA).name == "training × defense, dataset model"


def test_a_tag_for_every_axis() -> None:
    tags = view.view(record(), SHA).tags
    expected = {
        "cell": "a1", "record": SHA, "source": "5" * 64, "protocol": "1", "status": "done",
        "dataset": "digits", "model": "dlg-lenet", "defense": "prune", "attack": "cpl",
        "point": "type-1", "knowledge": "plain", "seed": "0", "draw": "1",
        "labels": "true", "repeated_readings": "5", "readings": "16", "evaluations": "500",
        "federated": "fedavg", "clients": "100", "per_round": "10", "steps": "4", "batch": "3",
        "rate": "0.05", "partition": "two-shard", "weights": "file", "weights_sha256": "1" * 64,
    }  # fmt: skip
    assert {key: tags.get(f"bench.{key}") for key in expected} == expected
    assert tags["environment.device"] == "cpu"
    assert "bench.client_examples" not in tags


def test_weights_of_a_training_name_it_and_its_round() -> None:
    weights = {"kind": "checkpoint", "training": "2" * 64, "round": 0}
    tags = view.view(record(cell={**record().cell, "weights": weights}), SHA).tags
    found = {key: item for key, item in tags.items() if key.startswith("bench.record.checkpoints")}
    assert found == {
        "bench.record.checkpoints": "checkpoint", "bench.weights_training": "2" * 64, "bench.weights_round": "0",
    }  # fmt: skip


def test_no_more_tags_than_one_request_takes_and_the_axes_are_kept() -> None:
    """100 a request; name, run, picture, description and `superseded` come on top."""
    few = view.view(record(), SHA).tags
    many = view.view(record(environment={f"a{i}": "x" for i in range(300)}), SHA).tags
    assert len(many) + 5 <= 100
    axes = {key: item for key, item in few.items() if key.startswith("bench.")}
    assert axes.items() <= many.items()


def test_parameters_are_flat_and_hold_no_hash_or_path() -> None:
    params = view.view(record(), SHA).params
    assert params["defense"] == "prune"
    assert params["defense.share"] == "0.7"
    assert params["attack.outer"] == "300"
    assert params["federated.batch"] == "3"
    assert not [key for key in params if "sha256" in key or "path" in key]


def test_every_finite_number_is_a_metric_and_nothing_else() -> None:
    summary = {
        "asr": 0.5, "none": None, "private": False, "text": "x", "huge": 10**400,
        "infinite": float("inf"), "psnr_db": {"median": 20, "nan": float("nan"), "deeper": {"x": 1}},
    }  # fmt: skip
    shown = view.view(record(summary=summary, cost={"evaluations": 7}), SHA)
    assert shown.metrics == [
        ("leak/asr", 0.5, 0),
        ("leak/psnr_db/median", 20.0, 0),
        ("cost/evaluations", 7.0, 0),
    ]


def test_a_curve_keeps_its_rounds() -> None:
    summary = {"accuracy": 0.9, "curve": [[5, 0.4], [10, None], [15, 0.9]]}
    shown = view.view(record(cell={"kind": "training"}, summary=summary, cost={}), SHA)
    assert shown.metrics == [
        ("utility/accuracy", 0.9, 0),
        ("utility/curve", 0.4, 5),
        ("utility/curve", 0.9, 15),
    ]


@pytest.mark.parametrize(
    ("status", "ended"), [("done", "FINISHED"), ("n/a", "KILLED"), ("crashed", "FAILED")]
)
def test_status_is_seen_without_opening_the_run(status: Any, ended: str) -> None:
    shown = view.view(record(status=status, reason="too many unknowns"), SHA)
    assert shown.status == ended
    assert shown.tags["bench.reason"] == "too many unknowns"


def test_whatever_a_record_holds_the_keys_and_texts_are_within_limits() -> None:
    hostile = {
        "attack": entry("\x1b[31m\ud800<script>", **{"../..//π\n": "y" * 9000, "a" * 400: 1}),
        "point": "\x00",
    }
    shown = view.view(record(cell=hostile, summary={"//a/./..//b": {"..": 1}, "x": "z" * 9000}), SHA)
    texts = [shown.name, *shown.tags.values(), *shown.params.values()]
    for text in texts:
        text.encode()
        assert not re.search(r"[\x00-\x1f\x7f]", text)
    assert max(map(len, shown.params.values())) <= 6000
    assert max(map(len, shown.tags.values())) <= 8000
    for key in [*shown.tags, *shown.params, *(name for name, _, _ in shown.metrics)]:
        assert re.fullmatch(r"[\w\-. :/]{1,250}", key, re.ASCII)
        assert not {"", ".", ".."} & set(key.split("/")), key


@pytest.mark.parametrize("where", ["summary", "environment"])
def test_private_is_read_where_it_is_said(where: str) -> None:
    assert not is_private(record())
    assert is_private(record(**{where: {"private": True}}))


def test_a_file_that_is_no_record_is_refused_with_its_name(tmp_path: Path) -> None:
    path = records.write(tmp_path, record())
    assert view.load(path)[1].sha256 == store.digest(path.read_bytes())

    other = path.rename(path.with_name("b'2.json"))
    with pytest.raises(RecordError, match=r"b'2\.json: the record in it calls itself 'a1'"):
        view.load(other)

    content = json.loads(other.read_text()) | {"cell": [1]}
    path.write_text(json.dumps(content))
    with pytest.raises(RecordError, match=r"a1\.json: not a record: its cell has another type"):
        view.load(path)
    path.write_text(json.dumps(json.loads(other.read_text()) | {"status": "fine"}))
    with pytest.raises(RecordError, match=r"a1\.json: its fields are not a record's"):
        view.load(path)
    with pytest.raises(RecordError, match="cannot be read"):
        view.load(tmp_path / "gone.json")


# --- the store's address -----------------------------------------------------------------------------


@pytest.mark.parametrize("uri", ["mlruns", "file:///tmp/x", "sqlite://", "sqlite:///", "", "http://[::1"])
def test_an_address_that_is_no_store_is_refused(tmp_path: Path, uri: str) -> None:
    with pytest.raises(BenchError, match=r"tracking uri must be http://…"):
        store.checked_uri(tmp_path, uri)


def test_the_default_store_stands_beside_the_run(tmp_path: Path) -> None:
    assert (
        store.checked_uri(tmp_path / "runs" / "a", None) == f"sqlite:///{tmp_path.resolve()}/runs/mlflow.db"
    )
    with pytest.raises(BenchError, match=r"cannot hold \? or #"):
        store.default_uri(tmp_path / "what?" / "a")


def test_a_password_is_neither_shown_nor_noted(tmp_path: Path) -> None:
    uri = "https://me:secret@host:5000/path"
    assert store.shown(uri) == "https://host:5000/path"
    assert store.shown("sqlite:////a@b/c@d.db") == "sqlite:////a@b/c@d.db"
    note = store.Note(experiment="e", sha256=SHA, run="r")
    store.write_note(tmp_path, "a1", uri, note)
    store.write_note(tmp_path, "a1", "sqlite:////x.db", note)
    assert "secret" not in (tmp_path / "synced" / "a1.json").read_text()
    assert store.read_note(tmp_path, "a1", uri) == note


def test_unsynced_counts_changed_records_and_survives_damaged_notes(tmp_path: Path) -> None:
    uri = store.default_uri(tmp_path)
    path = records.write(tmp_path, record())
    assert store.unsynced(tmp_path, uri) == 1
    noted = store.Note(experiment="e", sha256=store.digest(path.read_bytes()), run="r")
    store.write_note(tmp_path, "a1", uri, noted)
    assert store.unsynced(tmp_path, uri) == 0
    path.write_bytes(path.read_bytes() + b"\n")
    assert store.unsynced(tmp_path, uri) == 1
    for damaged in ("", "[]", '{"x": 1}', json.dumps({uri: 3})):
        (tmp_path / "synced" / "a1.json").write_text(damaged)
        assert store.unsynced(tmp_path, uri) == 1


def test_the_newest_run_is_the_default(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no run with records there"):
        store.checked_run(None, tmp_path)
    for name in ("old", "new", "middle"):
        (tmp_path / name / "records").mkdir(parents=True)
    for name, stamp in (("old", 1), ("new", 3), ("middle", 2)):
        os.utime(tmp_path / name / "records", (stamp, stamp))
    assert store.checked_run(None, tmp_path).name == "new"
    with pytest.raises(BenchError, match="no folder records/ there"):
        store.checked_run(tmp_path)
