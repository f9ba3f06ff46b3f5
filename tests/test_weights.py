"""Checkpoints say of themselves what they are, in the same bytes each time."""

from pathlib import Path

import torch
from safetensors.torch import save_file

from bench.record.checkpoints import read_about, read_weights, write_weights

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
