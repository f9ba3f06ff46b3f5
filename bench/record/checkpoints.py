"""Weights for a cell: untrained (drawn from the seed), from a file, or saved after a training round."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import Tensor, nn

from bench.cell import AnyCell, AttackCell, CheckpointWeights, FileWeights, Weights
from bench.errors import DataError, NotApplicable, RecordError, WeightsError
from bench.record import store as records
from bench.record.files import read_plain, write_atomically
from bench.record.npz import read_npz
from bench.trip import Tensors

_NPZ = re.compile(r"[A-Za-z0-9_.]{1,200}\.npy")  # names of parameters
_ABOUT = "about"  # the key of a checkpoint's metadata


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file; raises `WeightsError` for an unreadable file."""
    try:
        return hashlib.sha256(read_plain(path)).hexdigest()
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read ({error.strerror}); name a weights file") from None


def read_weights(path: Path, *, sha256: str | None = None) -> dict[str, Tensor]:
    """Read a weights file (`.safetensors`, `.npz` or `.pt`) as name → tensor, without unpickling arbitrary objects.
    `sha256` is the content hash that the file must have; None: not checked. Raises `WeightsError` for another format, a
    damaged file, or another hash."""
    if sha256 is not None and file_sha256(path) != sha256:
        raise WeightsError(f"{path}: its content changed since the cell was made; plan the matrix again")
    try:
        if path.suffix == ".safetensors":
            return load_safetensors(path.read_bytes())
        if path.suffix == ".npz":
            return {name: torch.from_numpy(value) for name, value in read_npz(path, names=_NPZ).items()}
        if path.suffix in (".pt", ".pth"):
            loaded = torch.load(path, map_location="cpu", weights_only=True)
            if not isinstance(loaded, dict) or not all(isinstance(v, Tensor) for v in loaded.values()):
                raise WeightsError(f"{path}: expected a state dict of tensors; save model.state_dict()")
            return dict(loaded)
    except WeightsError:
        raise
    except DataError as error:
        raise WeightsError(str(error)) from None
    except FileNotFoundError:
        raise WeightsError(f"{path}: no such weights file") from None
    except (OSError, ValueError, EOFError, SafetensorError, RuntimeError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise WeightsError(f"{path}: cannot be read as weights ({first}); save it again") from None
    except Exception as error:  # torch's unpickler raises its own family for what it refuses
        raise WeightsError(f"{path}: refused ({type(error).__name__}); save tensors alone") from None
    raise WeightsError(f"{path}: unknown format {path.suffix!r}; give .safetensors, .npz or .pt")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSource:
    """File, content hash and training round of an attack cell's weights."""

    path: Path | None = None
    """Weights file; None: untrained weights, drawn from the seed."""
    sha256: str | None = None
    """Content hash that the file must have; None: not checked."""
    round: int = 0
    """Training round of a checkpoint; 0 for other weights."""


def locate(run: Path, weights: Weights) -> WeightsSource:
    """Find the `weights` that a cell (experiment) attacks or tests: return file, content hash and training round. A
    checkpoint is in the run folder `run`, and its hash in its training's record. Raises `WeightsError` for an
    unfinished training or an unsaved round, and `NotApplicable` if the training diverged or stopped before the
    round."""
    match weights:
        case CheckpointWeights(training=training, round=round_):
            sha256 = _checkpoint_sha256(run, training, round_)
            return WeightsSource(path=checkpoint_path(run, training, round_), sha256=sha256, round=round_)
        case FileWeights():
            return WeightsSource(path=Path(weights.path), sha256=weights.sha256)
    return WeightsSource()


def training_id(cell: AnyCell) -> str | None:
    """Return the id of the training (cell) that must run before an attack cell, because the attack uses a checkpoint of
    this training. None for training cells, and for weights that are no checkpoint."""
    if isinstance(cell, AttackCell) and isinstance(cell.weights, CheckpointWeights):
        return cell.weights.training
    return None


def checkpoint_path(run: Path, training: str, round_: int) -> Path:
    """Return the path, in the run folder `run`, of the weights that a training saved after round `round_`. `training`
    is the id of the training's cell (experiment)."""
    return run / "weights" / training / f"round-{round_}.safetensors"


def _checkpoint_sha256(run: Path, training: str, round_: int) -> str:
    where = f"training {training[:8]}"
    try:
        record = records.read(records.record_path(run, training))
    except RecordError:
        raise WeightsError(f"{where} has no record; run its matrix") from None
    result = record.training
    if result is None:
        raise WeightsError(f"{where} did not finish ({record.reason}); see `bench show {training[:8]}`")
    if round_ in result.checkpoints:
        return result.checkpoints[round_]
    if result.diverged:
        raise NotApplicable(f"{where} diverged before round {round_}")
    if result.rounds < round_:
        raise NotApplicable(f"{where} stopped after round {result.rounds}, before round {round_}")
    raise WeightsError(f"{where} did not keep round {round_}; run its matrix again")


def write_weights(path: Path, tensors: Tensors, about: Mapping[str, Any] | None = None) -> str:
    """Write tensors as a safetensors file, atomically, and return the file's SHA-256. `about` is a description of the
    weights in JSON types, which `read_about` returns; None for no description.

    The description has a single key: safetensors writes several keys in varying order, and equal checkpoints must have
    equal bytes."""
    metadata = None if about is None else {_ABOUT: json.dumps(about, sort_keys=True)}
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    content = save_safetensors(plain, metadata)
    write_atomically(path, content)
    return hashlib.sha256(content).hexdigest()


def read_about(path: Path) -> dict[str, Any]:
    """Read the description that `write_weights` stored together with weights in the file `path`, such as the training
    round and the accuracy; empty without a description."""
    if path.suffix != ".safetensors":
        return {}
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {}).get(_ABOUT, "{}"))
    except (OSError, ValueError, SafetensorError):
        return {}
    return about if isinstance(about, dict) else {}


def outside_precision(value: Tensor) -> Tensor:
    """Find the values that make the weights of a diverged training useless: return the entries of the weight tensor
    `value` that are NaN, infinite, or beyond 1.8e19, so that squares exceed single precision. Empty for usable
    weights."""
    single = value.detach().float()
    return single[~single.square().isfinite()]


def refuse_diverged(tensors: Tensors, *, where: str) -> None:
    """Raise `WeightsError` for weights of a diverged training, with values that are not finite or beyond 1.8e19;
    `tensors` are name → tensor. The message begins with `where`."""
    for name, value in tensors.items():
        wrong = outside_precision(value)
        if len(wrong):
            raise WeightsError(f"{where}: {name} holds {float(wrong[0]):g}, as of a model that diverged; take others")


def fit(module: nn.Module, tensors: Tensors, *, where: str) -> dict[str, Tensor]:
    """Match weights to a model: return the entries of `tensors` (name → values) for the parameters of `module`, in the
    model's order; buffers are copied into the module. Raises `WeightsError` for a missing name, another shape, or a
    diverged value (`refuse_diverged`); the message begins with `where`."""
    refuse_diverged(tensors, where=where)
    parameters = dict(module.named_parameters())
    missing = [name for name in parameters if name not in tensors]
    if missing:
        raise WeightsError(
            f"{where}: no tensor {missing[0]!r} ({len(missing)} missing); it holds {', '.join(sorted(tensors)[:6])}"
        )
    for name, parameter in parameters.items():
        if tensors[name].shape != parameter.shape:
            raise WeightsError(
                f"{where}: {name} has shape {tuple(tensors[name].shape)}, the model needs {tuple(parameter.shape)}"
            )
    for name, buffer in module.named_buffers():
        if name in tensors and tensors[name].shape == buffer.shape:
            buffer.copy_(tensors[name])
    return {name: tensors[name].to(parameter.dtype) for name, parameter in parameters.items()}
