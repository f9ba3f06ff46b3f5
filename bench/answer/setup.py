"""Prepare a cell's federated round: data set, model, weights, clients and the defense's stages."""

import copy
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bench.answer.context import Memory, RunContext
from bench.answer.inserted import inserts, program, program_weights
from bench.cell import AttackCell, CheckpointWeights, Grants, TrainingCell
from bench.datasets.base import Data
from bench.datasets.loading import load
from bench.defenses.base import Defense, Public, Setting
from bench.device import repeatable
from bench.errors import DataError, NotApplicable
from bench.federated import replay
from bench.federated.batches import clients_of
from bench.federated.setting import setting_of
from bench.federated.stages import Stages, stages
from bench.federated.training import TrainingJob
from bench.models.base import Model
from bench.points import Point, Scope, point
from bench.record.checkpoints import checkpoint_path, fit, locate, read_about, read_weights
from bench.registry import entries as registry

UNTRAINED_ROUNDS = 100  # T for noise schedules without a training (Fed-αCDP §7)
KEPT_BYTES = 500e6  # per worker, for data sets not in use


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Data set, clients and training round from which the true examples of a cell (an experiment) are drawn. Defenses,
    models and attacks with an equal source attack the same examples."""

    data: Data
    """Loaded data set."""
    clients: NDArray[np.int64]
    """(client, example): each client's examples, as positions in the training split."""
    round: int = 0
    """Training round whose batches are observed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """All values for the federated round of a cell (an experiment): data, clients, model, weights, and the defense with
    its states."""

    data: Data
    """Loaded data set."""
    model: nn.Module
    """Model in eval mode; its parameters are not used, see `weights`."""
    weights: dict[str, Tensor]
    """Model weights, name → (*shape)."""
    clients: NDArray[np.int64]
    """(client, example): each client's examples, as positions in the training split."""
    defense: Defense
    """The defense, with its parameters."""
    setting: Setting
    """Federated setting, as shown to the defense."""
    stages: Stages
    """The defense's transforms by stage, with their states."""
    round: int = 0
    """Number of the simulated round: for weights from a training's checkpoint, the round after which they were saved;
    otherwise 0."""
    trained_rounds: int = 0
    """Number of rounds for which the weights were trained, as noted in their file; 0 for untrained weights."""
    accuracy: float | None = None
    """Test accuracy, as noted in the weights' file; None if unknown."""
    whole_round: bool = False
    """True if a client's reading (observed update) depends on other clients in its round."""

    @property
    def source(self) -> Source:
        """The data set, the clients' examples and the round, from which true examples are drawn."""
        return Source(data=self.data, clients=self.clients, round=self.round)

    @property
    def coordinates(self) -> int:
        """Number of coordinates of the model's weights, over all tensors."""
        return sum(value.numel() for value in self.weights.values())

    @property
    def undefended(self) -> Stages:
        """The stages of the same round without a defense: no transforms."""
        return self.stages.undefended


def source_of(cell: AttackCell, data: Data, run: Path) -> Source:
    """Return the data from which the victims of the cell (an experiment) are drawn: the data set `data`, the clients'
    examples, and the training round of the cell's weights. `run` is the run folder with these weights. Raises
    `WeightsError` if the weights are missing."""
    return Source(data=data, clients=clients_of(cell, data), round=locate(run, cell.weights).round)


def prepare(cell: AttackCell, source: Source, context: RunContext, passed: Collection[int] = ()) -> Setup:
    """Return all values for the federated round of the attack cell (an experiment): data, model, weights and defense.
    For weights from a checkpoint, the defense has its state at the checkpoint's round. `source` is the data set with
    the clients' examples, from which the true examples are drawn, too; `context` gives the run's folders; `passed` are
    earlier checkpoints whose states are stored on the way. Raises `NotApplicable` for a cell that cannot run, and
    `WeightsError` for missing or altered files."""
    data = source.data
    architecture: Model = registry.of("models", cell.model)
    model = architecture.build(data.shape, data.classes).eval()
    weights, about = _weights(cell, architecture, model, context.run)
    training = replay.training_of(context.run, cell)
    rounds = training.rounds if training else UNTRAINED_ROUNDS
    model = program(cell, model, data.shape)
    setup = _setup(cell, data, model, program_weights(cell, model, weights), source.clients, rounds=rounds)
    setup = replace(setup, **about, whole_round=_whole_round(cell, setup.stages, point(cell.point)))
    if training and setup.round and setup.stages.states:
        if inserts(cell):
            raise NotApplicable(f"{cell.defense.name} has no memory of layers that were not trained; take round 0")
        return replace(setup, stages=_replayed(cell, training, setup, architecture, context, passed))
    return setup


def combined_rounds(cell: AttackCell, first: Setup, context: RunContext) -> list[Setup]:
    """Return all values for each round of a training whose updates the attacker of `cell` (an experiment) combines
    (`CheckpointWeights.further`), in ascending order; empty for a single round. `first` holds the values for the first
    round; `context` as for `prepare`."""
    weights = cell.weights
    if not isinstance(weights, CheckpointWeights) or not weights.further:
        return []
    later = [cell.model_copy(update={"weights": each}) for each in weights.single[1:]]
    # the last round first: its replay of a defense's memory passes the other rounds
    return [first, *[prepare(each, first.source, context, weights.rounds) for each in reversed(later)][::-1]]


def prepare_training(cell: TrainingCell, context: RunContext, memory: Memory) -> Setup:
    """Return all values for the first round of the training cell (an experiment): data, model, initial weights and
    defense. `context` gives the run's folders, and `memory` keeps loaded data sets between cells. Raises
    `NotApplicable` for a defense that refuses the setting, and `DataError` for missing or altered files."""
    data = load_data(cell, context, memory)
    architecture: Model = registry.of("models", cell.model)
    model = architecture.build(data.shape, data.classes).eval()
    weights = architecture.initial(model, cell.seed)
    return _setup(cell, data, model, weights, clients_of(cell, data), rounds=cell.rounds)


def data_is_kept(cell: AttackCell | TrainingCell, memory: Memory) -> bool:
    """Return whether the worker's cache `memory` holds the data set of the cell (an experiment)."""
    return cell.dataset.model_dump_json() in memory.data


def keep_data(cell: AttackCell | TrainingCell, memory: Memory, data: Data) -> None:
    """Put `data`, the data set of the cell (an experiment), into the worker's cache `memory`; above `KEPT_BYTES`, the
    least recently used data sets are dropped."""
    while memory.data and sum(kept.nbytes for kept in memory.data.values()) > KEPT_BYTES:
        del memory.data[next(iter(memory.data))]
    memory.data[cell.dataset.model_dump_json()] = data


def _setup(
    cell: AttackCell | TrainingCell,
    data: Data,
    model: nn.Module,
    weights: dict[str, Tensor],
    clients: NDArray[np.int64],
    *,
    rounds: int,
) -> Setup:
    public = Public(
        model=model,
        weights=weights,
        inputs=torch.from_numpy(data.public.floats()),
        labels=torch.from_numpy(data.public.labels),
        classes=data.classes,
    )
    grants = cell.grants if isinstance(cell, AttackCell) else Grants()
    setting = setting_of(
        cell.federated,
        rounds=rounds,
        client_examples=clients.shape[1],
        public=public,
        colluders=grants.colluders,
        dummies=grants.dummies,
    )
    defense: Defense = registry.of("defenses", cell.defense)
    try:
        staged = stages(defense, setting, {name: tuple(value.shape) for name, value in weights.items()})
    except ValueError as error:
        raise NotApplicable(f"{cell.defense.name}: {error}") from None
    return Setup(
        data=data, model=model, weights=weights, clients=clients, defense=defense, setting=setting, stages=staged
    )


def load_data(cell: AttackCell | TrainingCell, context: RunContext, memory: Memory) -> Data:
    """Return the data set of the cell (an experiment), from the worker's cache `memory` or from files in the data
    folder of `context`. Raises `DataError` if the files changed since the run was planned."""
    key = cell.dataset.model_dump_json()
    data = memory.data.pop(key, None)
    if data is None:
        data = load(registry.of("datasets", cell.dataset), cell.dataset.name, context.data_dir)
        keep_data(cell, memory, data)
    memory.data[key] = data
    if data.sha256 != cell.dataset.sha256:
        raise DataError(f"data set {cell.dataset.name}: its content changed since the matrix was planned; run it again")
    return data


def _weights(
    cell: AttackCell, architecture: Model, model: nn.Module, run: Path
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the weights, and values for the fields `round`, `trained_rounds` and `accuracy` of `Setup`."""
    located = locate(run, cell.weights)
    if located.path is None:
        return architecture.initial(model, cell.seed), {}
    about = read_about(located.path)
    rounds, accuracy = about.get("round"), about.get("accuracy")
    return fit(model, read_weights(located.path, sha256=located.sha256), where=str(located.path)), {
        "round": located.round,
        "trained_rounds": rounds if isinstance(rounds, int) else located.round,
        "accuracy": accuracy if isinstance(accuracy, float) else None,
    }


def _whole_round(cell: AttackCell, defended: Stages, at: Point) -> bool:
    """Return whether a client's reading at `at` depends on other clients in its round. Raises `NotApplicable` if
    colluding clients are granted but hold no values that help the attacker, for dummies if the defense exchanges
    values between clients or acts at the server, and for other weights for other clients if the defense reads the
    round's common weights."""
    if cell.grants.dummies and (stage := defended.without_dummies):
        why = (
            "at the server, which has the dummies; choose a defense of clients"
            if stage in ("server", "aggregate")
            else "between clients; for their knowledge grant colluders at type-0"
        )
        raise NotApplicable(f"dummies: {cell.defense.name} acts {why}")
    if cell.grants.silences and defended.reads_weights:
        raise NotApplicable(f'{cell.defense.name} depends on a round\'s common weights; take server = "weights"')
    whole = defended.first_mixing_stage is not None and at.sees(defended.first_mixing_stage)
    if cell.grants.colluders and (not whole or at.scope is not Scope.UPDATE):
        raise NotApplicable(
            f"colluders tell what passed between clients before one's update was read; {cell.defense.name} at "
            f"{at.name} has none"
        )
    return whole


def _replayed(
    cell: AttackCell,
    training: TrainingCell,
    setup: Setup,
    architecture: Model,
    context: RunContext,
    passed: Collection[int],
) -> Stages:
    """Run the training again; return the defense's stages with their states at the checkpoint's round."""
    replay.check_replayable(training, cell)
    clients = clients_of(training, setup.data)
    job = TrainingJob(
        cell=training,
        data=setup.data,
        clients=clients,
        model=copy.deepcopy(setup.model),
        device=torch.device(context.device),
    )
    initial = architecture.initial(setup.model, training.seed)
    of_training = training.model_copy(update={"defense": cell.defense})
    trained = _setup(of_training, setup.data, setup.model, initial, clients, rounds=training.rounds)
    checkpoints = {*passed, setup.round}
    caches = {at: replay.cache_path(checkpoint_path(context.run, training.id, at), cell) for at in checkpoints}
    with repeatable(job.device):
        states = replay.states_at(job, initial, trained.stages, setup.round, caches, setup.weights).states
    return replace(setup.stages, states=states)
