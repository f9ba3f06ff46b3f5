"""Cell → victims: the truth behind its readings, drawn by a key that no defense or attack moves."""

import json

import numpy as np
import torch
from numpy.typing import NDArray

from bench import rng
from bench.cell import AttackCell, TrainingCell
from bench.datasets.base import Data
from bench.datasets.partition import client_indices
from bench.federated.pipeline import Batches
from bench.points import Point
from bench.trip import Victims


def clients_of(cell: AttackCell | TrainingCell, data: Data) -> NDArray[np.int64]:
    """Every client's examples as indices into the training split: (client, example)."""
    federated = cell.federated
    return client_indices(
        data.training.labels, kind=federated.partition, clients=federated.clients,
        client_examples=federated.client_examples, seed=cell.seed,
    )  # fmt: skip


def local_batches(
    cell: AttackCell | TrainingCell,
    data: Data,
    clients: NDArray[np.int64],
    chosen: tuple[int, ...],
    round_: int,
) -> tuple[Batches, NDArray[np.int64]]:
    """What the chosen clients train on in a round, and the indices (client, step, example) behind it.

    A client goes through its examples in an order of its own each round, without replacement
    until all are used.
    """
    federated, key = cell.federated, _key(cell, data)
    indices = np.stack([_order(cell, key, client, clients[client], round_) for client in chosen]).reshape(
        len(chosen), federated.steps, federated.batch
    )
    return (
        Batches(
            clients=chosen,
            inputs=torch.from_numpy(data.training.floats(indices)),
            labels=torch.from_numpy(data.training.labels[indices]),
        ),
        indices,
    )


def draw_victims(
    cell: AttackCell,
    data: Data,
    clients: NDArray[np.int64],
    point: Point,
    round_: int,
    *,
    whole: bool = False,
) -> tuple[Victims, list[Batches]]:
    """The victims of an attack cell and, per sender, the batches they are in; `clients` as `clients_of` has them.

    The same for all points, defenses and attacks: clients in a keyed order, each with its batch of
    that round; at `aggregate` a reading takes K clients of that order.  With `whole` the batches are those of
    each reading's whole round of K clients, its victim first, the others by a key of their own.
    """
    senders = cell.federated.per_round if point.unit == "sum" else 1
    order = rng.generator(cell.seed, "victims", _key(cell, data)).permutation(cell.federated.clients)
    flat = np.resize(order, cell.readings * senders)
    batches, indices = local_batches(cell, data, clients, tuple(int(c) for c in flat), round_)
    shape = (cell.readings, senders)
    victims = Victims(
        inputs=batches.inputs.unflatten(0, shape), labels=batches.labels.unflatten(0, shape),
        indices=torch.from_numpy(indices).unflatten(0, shape),
        clients=tuple(tuple(int(c) for c in row) for row in flat.reshape(shape)),
    )  # fmt: skip
    if point.unit != "sum" and not whole:
        return victims, [batches]
    if point.unit != "sum":
        rounds = [
            (victim, *_companions(cell, data, victim, r)) for r, (victim,) in enumerate(victims.clients)
        ]
        return victims, [local_batches(cell, data, clients, one, round_)[0] for one in rounds]
    return victims, [
        Batches(clients=victims.clients[r], inputs=victims.inputs[r], labels=victims.labels[r])
        for r in range(cell.readings)
    ]


def _companions(cell: AttackCell, data: Data, victim: int, reading: int) -> tuple[int, ...]:
    """The K - 1 other clients of a reading's round."""
    drawn = rng.generator(cell.seed, "companions", _key(cell, data), reading).permutation(
        cell.federated.clients
    )
    return tuple(int(client) for client in drawn if client != victim)[: cell.federated.per_round - 1]


def pictures(victims: Victims, point: Point) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The distinct examples a reading at `point` is of: inputs, labels, examples (reading, picture, …).

    Type-2 shows the first example of the batch that type-1 and type-0 read.
    """
    found = (victims.inputs.flatten(1, 3), victims.labels.flatten(1), victims.indices.flatten(1))
    if point.unit == "example":
        return found[0][:, :1], found[1][:, :1], found[2][:, :1]
    if point.unit == "step":
        return tuple(part[:, 0, 0] for part in (victims.inputs, victims.labels, victims.indices))  # type: ignore[return-value]
    return found


def _order(
    cell: AttackCell | TrainingCell, key: str, client: int, own: NDArray[np.int64], round_: int
) -> NDArray[np.int64]:
    needed = cell.federated.steps * cell.federated.batch
    draw = rng.generator(cell.seed, "batch", key, client, round_)
    passes = [own[draw.permutation(len(own))] for _ in range(-(-needed // len(own)))]
    return np.concatenate(passes)[:needed]


def _key(cell: AttackCell | TrainingCell, data: Data) -> str:
    """The fields that victims concern: data, model, federated setting (the seed is the key's own)."""
    return json.dumps(
        [data.sha256, cell.model.model_dump(mode="json"), cell.federated.model_dump(mode="json")],
        sort_keys=True,
    )
