"""Replay of a training to get a defense's state (such as error memory) at the round of a checkpoint."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from bench.cell import AttackCell, CheckpointWeights, TrainingCell
from bench.defenses.base import Tensors
from bench.errors import NotApplicable, RecordError
from bench.federated.resume import states_of, tensors_of
from bench.federated.stages import Stages
from bench.federated.training import Progress, TrainingJob, begin, train
from bench.record import store as records
from bench.record.checkpoints import read_weights, write_weights


def training_of(run: Path, cell: AttackCell) -> TrainingCell | None:
    """Return the training cell that saved the weights of an attack `cell` in the run folder `run`. None if the weights
    are no checkpoint, or if the training has no record."""
    if not isinstance(cell.weights, CheckpointWeights):
        return None
    try:
        record = records.read(records.record_path(run, cell.weights.training))
    except RecordError:
        return None
    return record.cell if isinstance(record.cell, TrainingCell) else None


def check_replayable(training: TrainingCell, cell: AttackCell) -> None:
    """Check that repeating `training`, which saved the weights of the attack `cell`, gives the state (memory between
    rounds, such as an adapted clip) that the cell's defense has at these weights. Raises `NotApplicable` if the data
    set, the model, the number of clients or the defense differ; a training without a defense may be repeated for any
    defense."""
    if training.dataset != cell.dataset or training.model != cell.model:
        raise NotApplicable("its state cannot be replayed over a training of other data or another model")
    if training.federated.clients != cell.federated.clients:
        raise NotApplicable(
            f"its state is of {training.federated.clients} clients in that training, and of "
            f"{cell.federated.clients} here; give both the same"
        )
    if training.defense.name != "none" and training.defense != cell.defense:
        raise NotApplicable("its state cannot be replayed over a training under another defense")


def states_at(
    job: TrainingJob, initial: Tensors, stages: Stages, round_: int, caches: Mapping[int, Path], expected: Tensors
) -> Stages:
    """Return the defense's `stages` with their states (memory) after `round_` rounds of a training, by repeating the
    training from the weights `initial`. An attack on saved weights needs the memory that the defense has in that round.

    - `job`: configuration and data of the training. If the training had no defense, transforms update their states but
      no tensors.
    - `caches`: round → file that stores the round's states for later calls. Files of earlier rounds are written, too.
    - `expected`: weights at which the repeated training must end.

    Raises `NotApplicable` if the repeated training ends at other weights."""
    if caches[round_].exists():
        return replace(stages, states=states_of(read_weights(caches[round_]), stages))
    observer = replace(stages, states_only=job.cell.defense.name == "none")
    untested = {"rounds": round_, "test_every": round_, "test_examples": 1, "bayesian": None}
    short = replace(job, cell=job.cell.model_copy(update=untested))
    passed: dict[int, Stages] = {}

    def proceed(now: Progress) -> bool:
        if now.round in caches:
            passed[now.round] = now.stages
        return True

    end = train(short, begin(short, initial, observer), proceed)
    if not all(torch.equal(end.weights[name].cpu(), value) for name, value in expected.items()):
        raise NotApplicable("its training, run again, ends at other weights: made on another machine or by other code")
    for at, each in passed.items():
        write_weights(caches[at], tensors_of(each))
    return replace(stages, states=end.stages.to(torch.device("cpu")).states)


def cache_path(checkpoint: Path, cell: AttackCell) -> Path:
    """Return the path of the file that stores the states (memory between rounds) of the defense in `cell`. The file
    lies next to the file `checkpoint`."""
    key = hashlib.sha256(cell.defense.model_dump_json().encode()).hexdigest()[:16]
    return checkpoint.with_name(f"{checkpoint.stem}.{key}.states.safetensors")
