"""The state that a defense comes to over a training: what it would hold at the round of a checkpoint."""

import hashlib
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from bench.cell import AttackCell, CheckpointWeights, TrainingCell
from bench.errors import NotApplicable, RecordError
from bench.federated.resume import states_of, tensors_of
from bench.federated.stages import Stages
from bench.federated.training import Course, begin, train
from bench.record import store as records
from bench.record.checkpoints import read_weights, write_weights


def training_of(run: Path, cell: AttackCell) -> TrainingCell | None:
    """The training whose checkpoint a cell attacks; None where its weights are no checkpoint's, or it has no
    record (which is told where the weights are read)."""
    given = cell.weights
    if not isinstance(given, CheckpointWeights):
        return None
    try:
        made = records.read(records.record_path(run, given.training))
    except RecordError:
        return None
    return made.cell if isinstance(made.cell, TrainingCell) else None


def followable(found: TrainingCell, cell: AttackCell) -> None:
    """Raises `NotApplicable` where the training is of other data, or of so many clients or under such a defense
    that the state of the cell's defense cannot be followed over it."""
    if found.dataset != cell.dataset or found.model != cell.model:
        raise NotApplicable("its state cannot be followed over a training of other data or another model")
    if found.federated.clients != cell.federated.clients:
        raise NotApplicable(
            f"its state is of {found.federated.clients} clients in that training, and of "
            f"{cell.federated.clients} here; give both the same"
        )
    if found.defense.name != "none" and found.defense != cell.defense:
        raise NotApplicable("its state cannot be followed over a training under another defense")


def states_at(
    course: Course,
    initial: dict[str, Tensor],
    stages: Stages,
    round_: int,
    kept: Path,
    expected: dict[str, Tensor],
) -> Stages:
    """`stages` with their states after `round_` rounds of the training: under it where it is the training's
    own defense, beside it where the training had none.  Kept in the file `kept`.

    The training runs again, to the same weights: raises `NotApplicable` where they are not those `expected`.
    """
    if kept.exists():
        return replace(stages, states=states_of(read_weights(kept)))
    watching = replace(stages, observing=course.cell.defense.name == "none")
    untested = {"rounds": round_, "test_every": round_, "test_examples": 1, "bayesian": None}
    short = replace(course, cell=course.cell.model_copy(update=untested))
    end = train(short, begin(short, initial, watching))
    if not all(bool((end.weights[name] == value).all()) for name, value in expected.items()):
        raise NotApplicable(
            "its training, run again, ends at other weights: made on another machine or by other code"
        )
    write_weights(kept, tensors_of(end.stages))
    return replace(stages, states=end.stages.states)


def kept_at(checkpoint: Path, cell: AttackCell) -> Path:
    """Where the states of a cell's defense at a checkpoint are kept, beside it."""
    key = hashlib.sha256(cell.defense.model_dump_json().encode()).hexdigest()[:16]
    return checkpoint.with_name(f"{checkpoint.stem}.{key}.states.safetensors")
