"""What MLflow is given of a record: every field of the cell, every number, and nothing it would refuse."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.records import MACHINE, PROVENANCE, UPLOADED, summary, to_upload

from bench.cell import AttackCell, CheckpointWeights, Entry, FileWeights, Grants, TrainingCell
from bench.errors import BenchError, RecordError
from bench.record import runs
from bench.record import store as records
from bench.record.metrics import METRICS
from bench.record.schema import Cost, Privacy, TrainingCost, TrainingResult
from bench.tracking import store, view

SHA = "f" * 64
FILE = FileWeights(sha256="1" * 64, path="/somewhere")
TRAINING = TrainingCell(
    dataset=UPLOADED.dataset, model=UPLOADED.model, federated=UPLOADED.federated, defense=UPLOADED.defense, rounds=20
)


def attacked(**changes: Any) -> AttackCell:
    return UPLOADED.model_copy(update=changes)


def test_name_says_the_cell_in_words() -> None:
    shown = view.view(to_upload(), SHA)
    assert shown.name == "cpl/plain × prune(share=0.7) @ type-1, digits dlg-lenet"
    result = TrainingResult(accuracy=0.9, curve=(), rounds=20, diverged=False)
    shown = view.view(to_upload(cell=TRAINING, result=result), SHA)
    assert shown.name == "training × prune(share=0.7), digits dlg-lenet"


def test_a_tag_for_every_field_of_the_cell() -> None:
    cell = attacked(weights=FILE, grants=Grants(labels=True, repeated_readings=5), draw=1)
    tags = view.view(to_upload(cell=cell), SHA).tags
    expected = {
        "cell": "a1",
        "record": SHA,
        "protocol": "1",
        "status": "done",
        "private": "false",
        "kind": "attack",
        "dataset": "digits",
        "dataset.sha256": "0" * 64,
        "model": "dlg-lenet",
        "defense": "prune",
        "attack": "cpl",
        "point": "type-1",
        "knowledge": "plain",
        "seed": "0",
        "draw": "1",
        "readings": "2",
        "evaluations": "500",
        "grants.labels": "true",
        "grants.repeated_readings": "5",
        "grants.colluders": "0.0",
        "federated": "fedavg",
        "federated.clients": "100",
        "federated.per_round": "10",
        "federated.steps": "4",
        "federated.batch": "3",
        "federated.rate": "0.05",
        "federated.partition": "two-shard",
        "weights": "file",
        "weights.sha256": "1" * 64,
    }
    assert {key: tags.get(f"bench.{key}") for key in expected} == expected
    assert tags["environment.device"] == "cpu"
    assert not {"bench.federated.client_examples", "bench.defense.share", "bench.weights.path"} & set(tags)
    other = replace(PROVENANCE, bench=replace(PROVENANCE.bench, sha256="6" * 64))
    assert view.view(to_upload(provenance=other), SHA).tags["bench.fingerprint"] != tags["bench.fingerprint"]


def test_every_grant_has_a_tag_and_a_parameter() -> None:
    shown = view.view(to_upload(), SHA)
    for name in Grants.model_fields:
        assert shown.params[f"grants.{name}"] == shown.tags[f"bench.grants.{name}"]


def test_weights_of_a_training_name_it_and_its_round() -> None:
    weights = CheckpointWeights(training="2" * 64, round=0)
    tags = view.view(to_upload(cell=attacked(weights=weights)), SHA).tags
    assert {key: text for key, text in tags.items() if key.startswith("bench.weights")} == {
        "bench.weights": "checkpoint",
        "bench.weights.training": "2" * 64,
        "bench.weights.round": "0",
    }


def test_no_more_tags_than_one_request_takes_and_the_cell_s_are_kept() -> None:
    """100 a request; name, run, picture, description and `superseded` come on top."""
    assert len(view.view(to_upload(), SHA).tags) + 5 <= 100


def test_parameters_are_flat_and_hold_no_hash_or_path() -> None:
    params = view.view(to_upload(cell=attacked(weights=FILE)), SHA).params
    expected = {"defense": "prune", "defense.share": "0.7", "attack.outer": "300", "federated.batch": "3"}
    assert expected.items() <= params.items()
    assert not [key for key in params if "sha256" in key or "path" in key]


def test_every_number_is_a_metric_and_nothing_else() -> None:
    result = {
        "summary": summary(medians={metric.name: 20.0 for metric in METRICS}, gallery=10**400),
        "privacy": Privacy(epsilon=4.5),
    }
    cost = Cost(wall_seconds=3.0, training=TrainingCost(overhead=1.1))
    metrics = view.view(to_upload(result=result, cost=cost), SHA).metrics
    found = {name: value for name, value, step in metrics if step == 0}
    assert metrics[0] == ("leak/asr", 0.5, 0), "which MLflow's compare page draws"
    expected = {
        "leak/asr_low": 0.1,
        "leak/asr_high": 0.9,
        "leak/readings": 2.0,
        "leak/privacy/epsilon": 4.5,
        "cost/wall_seconds": 3.0,
        "cost/training/overhead": 1.1,
        **{f"leak/{metric.name}_median": 20.0 for metric in METRICS},
    }
    assert expected.items() <= found.items()
    assert not {"leak/gallery", "leak/lower_bound", "leak/label_accuracy", "leak/private"} & set(found)


def test_a_curve_keeps_its_rounds() -> None:
    result = TrainingResult(accuracy=0.9, curve=((5, 0.4), (15, 0.9)), rounds=20, diverged=False)
    metrics = view.view(to_upload(cell=TRAINING, result=result), SHA).metrics
    assert metrics[0] == ("utility/accuracy", 0.9, 0)
    assert {("utility/curve", 0.4, 5), ("utility/curve", 0.9, 15)} <= set(metrics)


@pytest.mark.parametrize(("status", "ended"), [("n/a", "KILLED"), ("crashed", "FAILED")])
def test_status_is_seen_without_opening_the_run(status: Any, ended: str) -> None:
    assert view.view(to_upload(), SHA).status == "FINISHED"
    shown = view.view(to_upload(status=status, reason="too many unknowns"), SHA)
    assert shown.status == ended
    assert shown.tags["bench.reason"] == "too many unknowns"


def test_whatever_a_record_holds_the_keys_and_texts_are_within_limits() -> None:
    attack = Entry(name="\x1b[31m\ud800<script>", params={"../..//π\n": "y" * 9000, "a" * 400: 1, "//a/./..//b": 2})
    hostile = to_upload(
        cell=attacked(attack=attack, point="\x00"),
        environment=replace(MACHINE, platform="z" * 9000),
        result={"notes": ("x" * 9000, "\n")},
    )
    shown = view.view(hostile, SHA)
    for text in [shown.name, *shown.tags.values(), *shown.params.values()]:
        text.encode()
        assert not re.search(r"[\x00-\x1f\x7f]", text)
    assert len(shown.name) <= 250
    assert max(map(len, shown.params.values())) <= 6000
    assert max(map(len, shown.tags.values())) <= 8000
    for key in [*shown.tags, *shown.params, *(name for name, _, _ in shown.metrics)]:
        assert re.fullmatch(r"[\w\-. :/]{1,250}", key, re.ASCII)
        assert not {"", ".", ".."} & set(key.split("/")), key


def test_a_file_that_is_no_record_is_refused_with_its_name(tmp_path: Path) -> None:
    path = records.write(tmp_path, to_upload())
    assert view.load(path)[1].sha256 == store.digest(path.read_bytes())

    other = path.rename(path.with_name("b'2.json"))
    with pytest.raises(RecordError, match=r"b'2\.json: the record in it calls itself 'a1'"):
        view.load(other)

    path.write_text(json.dumps(json.loads(other.read_text()) | {"status": "fine"}))
    with pytest.raises(RecordError, match=r"a1\.json: not a record: status"):
        view.load(path)
    with pytest.raises(RecordError, match="cannot be read"):
        view.load(tmp_path / "gone.json")


# --- the store's address -----------------------------------------------------------------------------


@pytest.mark.parametrize("uri", ["mlruns", "file:///tmp/x", "sqlite://", "sqlite:///", "", "http://[::1"])
def test_an_address_that_is_no_store_is_refused(tmp_path: Path, uri: str) -> None:
    with pytest.raises(BenchError, match=r"tracking uri must be http://…"):
        store.checked_uri(tmp_path, uri)


def test_the_default_store_stands_beside_the_run(tmp_path: Path) -> None:
    assert store.checked_uri(tmp_path / "runs" / "a", None) == f"sqlite:///{tmp_path.resolve()}/runs/mlflow.db"
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
    path = records.write(tmp_path, to_upload())
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
        runs.newest_run(tmp_path)
    for name in ("old", "new", "middle"):
        (tmp_path / name / "records").mkdir(parents=True)
    for name, stamp in (("old", 1), ("new", 3), ("middle", 2)):
        os.utime(tmp_path / name / "records", (stamp, stamp))
    assert runs.newest_run(tmp_path).name == "new"
    with pytest.raises(BenchError, match="no folder records/ there"):
        runs.checked_run(tmp_path)
