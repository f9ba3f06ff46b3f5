"""Resume an interrupted training from its last saved round, bit for bit."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from bench.defenses.base import State, Tensors
from bench.errors import WeightsError
from bench.federated.stages import Place, Stages
from bench.federated.training import Progress
from bench.record.checkpoints import read_about, read_weights, write_weights
from bench.record.schema import Spot

# The file with everything needed to resume a training; overwritten at each save, deleted when the training ends.
_FILE = "going-on.safetensors"
_WEIGHTS, _STATE, _CHECKPOINT, _COSTS = "weights", "state", "checkpoint", "costs"


def place(run: Path, training: str) -> Path:
    """Return the path of the file with a training's saved progress, in the run folder `run`. `training` is the id of
    the training's cell (experiment)."""
    return run / "weights" / training / _FILE


def save(path: Path, now: Progress, source: Any) -> None:
    """Write a training's progress `now` (weights, states, curve) to the file `path`, atomically. `source` identifies
    the code version, which `load` compares."""
    tensors = {f"{_WEIGHTS}/{name}": value for name, value in now.weights.items()}
    tensors |= tensors_of(now.stages)
    tensors |= {f"{_COSTS}/{level}": value for level, value in now.costs.items()}
    for round_, checkpoint in now.checkpoints.items():
        # copies, since the last round's checkpoint is the weights themselves, and no file may hold a tensor twice
        tensors |= {f"{_CHECKPOINT}/{round_}/{name}": value.clone() for name, value in checkpoint.items()}
    about = {
        "round": now.round,
        "curve": [list(point) for point in now.curve],
        "source": source,
        "spots": [asdict(spot) for spot in now.spots],
    }
    write_weights(path, tensors, about)


def load(path: Path, before: Progress, source: Any, checkpoints: tuple[int, ...] = ()) -> Progress:
    """Return the training's progress saved at `path`, or `before` (the progress before round 0) if no usable file
    exists. A file is unusable if the code version `source` has changed, or if the weights of a past round in
    `checkpoints` are missing."""
    about = read_about(path) if path.exists() else {}
    if about.get("source") != json.loads(json.dumps(source)):
        return before
    try:
        tensors = read_weights(path)
    except WeightsError:
        return before
    device = next(iter(before.weights.values())).device
    weights: dict[str, Tensor] = {}
    saved: dict[int, dict[str, Tensor]] = {}
    costs: dict[str, Tensor] = {}
    for full, value in tensors.items():
        kind, _, rest = full.partition("/")
        if kind == _WEIGHTS:
            weights[rest] = value.to(device)
        elif kind == _COSTS:
            costs[rest] = value
        elif kind == _CHECKPOINT:
            round_, _, name = rest.partition("/")
            saved.setdefault(int(round_), {})[name] = value
    if any(round_ <= about["round"] and round_ not in saved for round_ in checkpoints):
        return before
    ordered = {name: weights[name] for name in before.weights}
    stages = replace(before.stages, states=states_of(tensors, before.stages)).to(device)
    return Progress(
        round=about["round"],
        weights=ordered,
        stages=stages,
        checkpoints=saved,
        costs=costs,
        curve=tuple((int(round_), float(accuracy)) for round_, accuracy in about["curve"]),
        spots=tuple(Spot(**each) for each in about["spots"]),
    )


def tensors_of(stages: Stages) -> dict[str, Tensor]:
    """Return the states (memory between rounds) of the defense `stages` as a flat dictionary, for a file: name →
    tensor. `states_of` reads it back."""
    return {
        f"{_STATE}/{stage}/{position}/{key}": value
        for (stage, position), state in stages.states.items()
        for key, value in state.items()
    }


def states_of(tensors: Tensors, stages: Stages) -> dict[Place, State]:
    """Read the states (memory between rounds) of a defense from the flat dictionary `tensors` of a file, as
    `tensors_of` makes it: return (stage, position of the transform) → state. `stages` is the defense; the result has
    the order of its states, not of the file, because another order would change sums by rounding."""
    return {
        (stage, position): {key: tensors[f"{_STATE}/{stage}/{position}/{key}"] for key in state}
        for (stage, position), state in stages.states.items()
    }
