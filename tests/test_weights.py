"""Weights are located by kind; checkpoints say of themselves what they are, in the same bytes each time."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from bench.cell import CheckpointWeights, DataRef, Entry, Federated, FileWeights, InitialWeights, TrainingCell
from bench.errors import NotApplicable, WeightsError
from bench.record.checkpoints import WeightsSource, locate, read_about, read_weights, write_weights
from bench.record.schema import Code, Provenance, Record, TrainingResult
from bench.record.store import write

ABOUT = {"training": "a" * 64, "round": 3, "accuracy": 0.5, "seed": 0, "dataset": "mnist"}


def test_what_a_checkpoint_says_comes_back_beside_its_tensors(tmp_path: Path) -> None:
    path, tensors = tmp_path / "w.safetensors", {"0.weight": torch.arange(6.0).reshape(2, 3)}
    first = write_weights(path, tensors, ABOUT)
    assert read_about(path) == ABOUT
    assert torch.equal(read_weights(path, sha256=first)["0.weight"], tensors["0.weight"])
    assert write_weights(path, tensors, dict(reversed(ABOUT.items()))) == first


def test_a_file_that_says_nothing_of_the_kind_is_no_fault(tmp_path: Path) -> None:
    tensors = {"w": torch.zeros(1)}
    write_weights(tmp_path / "bare.safetensors", tensors)
    save_file(tensors, tmp_path / "other.safetensors", {"about": "not JSON"})
    save_file(tensors, tmp_path / "list.safetensors", {"about": "[1]"})
    (tmp_path / "broken.safetensors").write_bytes(b"abc")
    (tmp_path / "w.npz").write_bytes(b"abc")
    for path in tmp_path.iterdir():
        assert read_about(path) == {}


TRAINING = TrainingCell(
    dataset=DataRef(name="digits", sha256="a" * 64),
    model=Entry(name="mlp"),
    federated=Federated(),
    defense=Entry(name="none"),
    rounds=9,
)


def trained(run: Path, **changed: Any) -> None:
    """The record of a training that ran four rounds and kept the second."""
    result = TrainingResult(accuracy=0.5, curve=((4, 0.5),), rounds=4, diverged=False, checkpoints={2: "c" * 64})
    record = Record(
        id=TRAINING.id,
        status="done",
        cell=TRAINING,
        provenance=Provenance(bench=Code(origin="here")),
        result=replace(result, **changed),
    )
    write(run, record)


def test_weights_are_located_by_kind(tmp_path: Path) -> None:
    trained(tmp_path)
    assert locate(tmp_path, InitialWeights()) == WeightsSource(path=None, sha256=None, round=0)
    path = tmp_path / "w.safetensors"
    sha256 = write_weights(path, {"w": torch.zeros(1)}, ABOUT)
    located = locate(tmp_path, FileWeights(sha256=sha256, path=str(path)))
    assert (located, read_about(path)) == (WeightsSource(path=path, sha256=sha256), ABOUT)
    checkpoint = locate(tmp_path, CheckpointWeights(training=TRAINING.id, round=2))
    assert checkpoint == WeightsSource(
        path=tmp_path / "weights" / TRAINING.id / "round-2.safetensors", sha256="c" * 64, round=2
    )
    assert checkpoint.path is not None and read_about(checkpoint.path) == {}  # the file is gone


@pytest.mark.parametrize(
    ("round_", "changed", "error", "message"),
    [
        (3, {}, WeightsError, "did not keep round 3; run its matrix again"),
        (5, {}, NotApplicable, "stopped after round 4, before round 5"),
        (3, {"diverged": True}, NotApplicable, "diverged before round 3"),
    ],
)
def test_a_checkpoint_that_is_not_there_says_why(
    tmp_path: Path, round_: int, changed: dict[str, Any], error: type[Exception], message: str
) -> None:
    trained(tmp_path, **changed)
    with pytest.raises(error, match=f"training {TRAINING.id[:8]} {message}"):
        locate(tmp_path, CheckpointWeights(training=TRAINING.id, round=round_))


def test_a_training_without_a_finished_record_says_what_to_do(tmp_path: Path) -> None:
    weights = CheckpointWeights(training=TRAINING.id, round=2)
    with pytest.raises(WeightsError, match="has no record; run its matrix"):
        locate(tmp_path, weights)
    record = Record(
        id=TRAINING.id,
        status="crashed",
        reason="it fell",
        cell=TRAINING,
        provenance=Provenance(bench=Code(origin="here")),
    )
    write(tmp_path, record)
    with pytest.raises(WeightsError, match=r"did not finish \(it fell\); see `bench show"):
        locate(tmp_path, weights)
