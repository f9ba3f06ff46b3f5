"""The clients' examples and each round's batches, drawn by a key which is independent of defense and attack."""

import json
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench import rng
from bench.cell import AttackCell, TrainingCell
from bench.datasets.base import Data
from bench.datasets.partition import client_indices

Indices = NDArray[np.int64]  # positions in the training split


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """Training data of a federated round: inputs and labels for each client and local step."""

    clients: tuple[int, ...]
    """Numbers of the round's clients."""
    inputs: Tensor
    """Inputs, (client, step, example, *shape) in [0, 1]."""
    labels: Tensor
    """Labels, (client, step, example)."""

    def __getitem__(self, rows: slice) -> "Batches":
        return Batches(clients=self.clients[rows], inputs=self.inputs[rows], labels=self.labels[rows])

    def to(self, device: torch.device) -> "Batches":
        """Return the batches with their tensors on `device`."""
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device))


def clients_of(cell: AttackCell | TrainingCell, data: Data) -> Indices:
    """Return each client's examples, (client, example), as positions in the training split of `data`. The federated
    setting and the seed of `cell` (the configuration of an experiment) determine the split among clients."""
    federated = cell.federated
    return client_indices(
        data.training.labels,
        kind=federated.partition,
        clients=federated.clients,
        client_examples=federated.client_examples,
        seed=cell.seed,
    )


def local_batches(
    cell: AttackCell | TrainingCell, data: Data, clients: Indices, chosen: tuple[int, ...], round_: int
) -> tuple[Batches, Indices]:
    """Return the batches of some clients in a round, and the positions of their examples in the training split,
    (client, step, example).

    - `cell`, `data`: configuration of the experiment, and the data set.
    - `clients`: every client's examples, (client, example), as positions in the training split.
    - `chosen`: numbers of the clients in the round.
    - `round_`: number of the round, from 0.

    Each round shuffles a client's examples anew; an example recurs in the round only after all other examples of the
    client."""
    indices = positions(cell, data, clients, chosen, round_)
    inputs, labels = data.training.floats(indices), data.training.labels[indices]
    return Batches(clients=chosen, inputs=torch.from_numpy(inputs), labels=torch.from_numpy(labels)), indices


def positions(
    cell: AttackCell | TrainingCell, data: Data, clients: Indices, chosen: tuple[int, ...], round_: int
) -> Indices:
    """Return the positions in the training split of the examples that some clients use in a round, (client, step,
    example), without loading inputs.

    - `cell`, `data`: configuration of the experiment, and the data set.
    - `clients`: every client's examples, (client, example), as positions in the training split.
    - `chosen`: numbers of the clients in the round.
    - `round_`: number of the round, from 0."""
    federated, key = cell.federated, data_key(cell, data)
    orders = np.stack([_order(cell, key, client, clients[client], round_) for client in chosen])
    return orders.reshape(len(chosen), federated.steps, federated.batch)


def data_key(cell: AttackCell | TrainingCell, data: Data) -> str:
    """Return a text, as JSON, that enters the seeds for victims, batches and candidates: cells with equal text and
    equal seed attack the same examples. The text holds the hash of `data`, the model, the federated setting, and the
    key of a second sample of victims if the configuration `cell` has one; defense and attack are no part of it."""
    model, federated = cell.model.model_dump(mode="json"), cell.federated.model_dump(mode="json")
    draw = [cell.victims] if isinstance(cell, AttackCell) and cell.victims is not None else []
    return json.dumps([data.sha256, model, federated, *draw], sort_keys=True)


def _order(cell: AttackCell | TrainingCell, key: str, client: int, examples: Indices, round_: int) -> Indices:
    needed = cell.federated.steps * cell.federated.batch
    generator = rng.generator(cell.seed, "batch", key, client, round_)
    passes = [examples[generator.permutation(len(examples))] for _ in range(-(-needed // len(examples)))]
    return np.concatenate(passes)[:needed]
