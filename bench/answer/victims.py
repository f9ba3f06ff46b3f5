"""Cell → victims: the truth behind its readings, drawn by a key that no defense or attack moves."""

import numpy as np
import torch
from numpy.typing import NDArray

from bench import rng
from bench.cell import AttackCell
from bench.datasets.base import Data
from bench.federated.batches import Batches, data_key, local_batches
from bench.points import Point
from bench.trip import Victims


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
    order = rng.generator(cell.seed, "victims", data_key(cell, data)).permutation(cell.federated.clients)
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
    drawn = rng.generator(cell.seed, "companions", data_key(cell, data), reading).permutation(
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
