"""Draw a cell's victims by a key that does not depend on defense or attack."""

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from bench import rng
from bench.answer.setup import Setup, Source
from bench.cell import AttackCell
from bench.errors import NotApplicable
from bench.federated.batches import Batches, Indices, data_key, local_batches, positions
from bench.federated.stages import DrawKey
from bench.gradients import one_hot
from bench.points import Point, Scope
from bench.trip import READING, ByReading, Victims

# Keys of `AttackCell.victims` for two draws without a common victim: a victim's position in the training split is even
# (tuning) or odd (scoring).
HALVES = ("tuning", "scoring")


def draw_victims(cell: AttackCell, source: Source, point: Point) -> Victims:
    """Draw the victims of an attack cell (an experiment): the clients behind each reading (observed update), with their
    examples in the round. The victims are equal for all defenses and attacks.

    - `source`: the data set, and each client's examples.
    - `point`: interception point, which gives the number of clients behind a reading.

    A key draws an order of all clients. Each reading takes the next client; at point `aggregate`, the next K - k
    clients (K clients in a round, without k granted dummies)."""
    senders = cell.senders
    generator = rng.generator(cell.seed, "victims", data_key(cell, source.data))
    order = generator.permutation(cell.federated.clients)
    flat = np.resize(order, cell.readings * senders)
    if cell.victims in HALVES:
        flat = _of_half(cell, source, order, senders)
    batches, indices = _batches(cell, source, tuple(int(client) for client in flat))
    shape = (cell.readings, senders)
    return Victims(
        inputs=batches.inputs.unflatten(0, shape),
        labels=batches.labels.unflatten(0, shape),
        indices=torch.from_numpy(indices).unflatten(0, shape),
        clients=tuple(tuple(int(client) for client in row) for row in flat.reshape(shape)),
    )


def _of_half(cell: AttackCell, source: Source, order: Indices, senders: int) -> Indices:
    """Return the clients of all readings, (reading·sender,).  The first client of a reading has, as first example of
    its batch, an example of the cell's half of the training split; no two readings have the same first client. Raises
    `NotApplicable` if too few clients qualify."""
    half = HALVES.index(cell.victims or "")
    indices = positions(cell, source.data, source.clients, tuple(int(client) for client in order), source.round)
    fits = indices[:, 0, 0] % len(HALVES) == half
    first, others = order[fits][: cell.readings], np.concatenate([order[~fits], order[fits][cell.readings :]])
    if len(first) < cell.readings or len(others) < senders - 1:
        raise NotApplicable(
            f"{cell.readings} victims of the half {cell.victims}: {len(first)} of {len(order)} clients have one; "
            "take fewer readings or more clients"
        )
    companions = np.resize(others, (cell.readings, senders - 1))
    flat: Indices = np.concatenate([first[:, None], companions], 1).flatten()
    return flat


def batches_of(cell: AttackCell, setup: Setup, victims: Victims, point: Point) -> list[Batches]:
    """Return the clients' batches in the federated rounds that the bench runs to observe `victims`: an item for each
    round of the `cell` (an experiment). `point` is the interception point that `cell.point` names; `setup` holds data
    and defense.

    - At `aggregate`: a round for each reading (observed update), with the reading's victims as clients.
    - If a victim's reading depends on other clients, whose data are then needed: a round for each reading, with the
      victim and K - 1 other clients (fewer by the attacker's dummies), drawn by a key. This is so for defenses such as
      exchanged noise (`Setup.whole_round`), and at `aggregate` if the server silences the other clients by zero weights
      (grant `server = "inconsistent"`).
    - Otherwise: a single round for all readings, with all victims as clients."""
    if point.scope is Scope.AGGREGATE and not cell.grants.silences:
        return [
            Batches(clients=victims.clients[r], inputs=victims.inputs[r], labels=victims.labels[r])
            for r in range(cell.readings)
        ]
    if not (setup.whole_round or cell.grants.silences):
        clients = tuple(client for (client,) in victims.clients)
        return [Batches(clients=clients, inputs=victims.inputs[:, 0], labels=victims.labels[:, 0])]
    rounds = [(victim, *_companions(cell, setup, victim, r)) for r, (victim,) in enumerate(victims.clients)]
    return [_batches(cell, setup.source, clients)[0] for clients in rounds]


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth(ByReading):
    """True examples behind the readings (observed updates) at an interception point, for the scorer."""

    inputs: Tensor = field(metadata=READING)
    """(reading, example, *shape): inputs in [0, 1]."""
    labels: Tensor = field(metadata=READING)
    """(reading, example): class numbers."""
    indices: Tensor = field(metadata=READING)
    """(reading, example): positions in the training split."""
    targets: Tensor | None = field(default=None, metadata=READING)
    """(reading, example, class): class probabilities, if a defense changed the labels before the gradient (stage
    `input`); otherwise None."""

    def probabilities(self, classes: int, dtype: torch.dtype) -> Tensor:
        """Return the examples' class probabilities in the client's loss, (reading, example, class), in `dtype`: one-hot
        labels, unless a defense changed them. `classes` is the number of classes."""
        return one_hot(self.labels, classes, dtype) if self.targets is None else self.targets.to(dtype)

    def split_at(self, count: int) -> "tuple[Truth, Truth]":
        """Return two sets of true examples, to separate victims from examples that the attacker knows: the first
        `count` examples of each reading (observed update), and the remaining examples of each reading."""
        first, others = (self._cut(cut) for cut in (slice(None, count), slice(count, None)))
        return first, others

    def _cut(self, examples: slice) -> "Truth":
        return Truth(
            inputs=self.inputs[:, examples],
            labels=self.labels[:, examples],
            indices=self.indices[:, examples],
            targets=None if self.targets is None else self.targets[:, examples],
        )

    def or_else(self, other: "Truth", rows: Tensor) -> "Truth":
        """Return these true examples with those of `other` in place of some, to score each reconstruction against the
        nearer original of a mixture. `rows` (reading,) is True for the readings (observed updates) whose inputs and
        labels are replaced. The fields `indices` and `targets` do not change."""
        at = rows.reshape(-1, *[1] * (self.inputs.dim() - 1))
        return replace(
            self, inputs=other.inputs.where(at, self.inputs), labels=other.labels.where(rows[:, None], self.labels)
        )


def truth_at(victims: Victims, point: Point, example: int = 0) -> Truth:
    """Return the true examples of `victims` behind the readings (observed updates) at the interception `point`. At
    type-2 (a single example's gradient), a reading has a single example: number `example` of its batch."""
    if point.scope is Scope.STEP:
        return Truth(inputs=victims.inputs[:, 0, 0], labels=victims.labels[:, 0, 0], indices=victims.indices[:, 0, 0])
    shown = slice(example, example + 1) if point.scope is Scope.EXAMPLE else slice(None)
    return Truth(
        inputs=victims.inputs.flatten(1, 3)[:, shown],
        labels=victims.labels.flatten(1)[:, shown],
        indices=victims.indices.flatten(1)[:, shown],
    )


def trained_at(cell: AttackCell, setup: Setup, victims: Victims, point: Point) -> Truth:
    """Return the training data of `victims` behind the readings (observed updates) at the interception `point`, as the
    gradient used them: inputs and class probabilities after the defense's transforms at stage `input` (before the
    gradient). `setup` holds the defense of `cell`."""
    truth, stages = truth_at(victims, point), setup.stages
    if not stages.has("input"):
        return truth
    clients = tuple(client for senders in victims.clients for client in senders)
    x = victims.inputs.flatten(0, 1)
    y = one_hot(victims.labels.flatten(0, 1), setup.data.classes, x.dtype)
    inputs, targets = x.clone(), y.clone()
    for step in range(cell.federated.steps):
        draw_key = DrawKey(seed=cell.seed, draw=cell.draw, round=setup.round, step=step)
        inputs[:, step], targets[:, step], stages = stages.trained_on(
            x[:, step], y[:, step], draw_key, clients, weights=setup.weights
        )
    shape = victims.labels.shape[:2]
    seen, soft = (
        truth_at(replace(victims, inputs=value.unflatten(0, shape)), point).inputs for value in (inputs, targets)
    )
    return replace(truth, inputs=seen, targets=soft)


def scored_once(truth: Truth, claimed: int) -> Truth:
    """Return the true examples `truth` without repeats, because a client may use an example in several local steps.
    `claimed` is the number of reconstructed examples per reading (observed update). If all readings have the same
    number of distinct examples, and `claimed` is at most this number, the result holds each distinct example once, in
    the order of first use. Otherwise the result is `truth` unchanged."""
    firsts = [np.sort(np.unique(row.numpy(), return_index=True)[1]) for row in truth.indices]
    if claimed > min(len(first) for first in firsts) or len({len(first) for first in firsts}) > 1:
        return truth
    at = torch.from_numpy(np.stack(firsts))
    rows = torch.arange(len(at))[:, None]
    return Truth(inputs=truth.inputs[rows, at], labels=truth.labels[rows, at], indices=truth.indices[rows, at])


def _batches(cell: AttackCell, source: Source, clients: tuple[int, ...]) -> tuple[Batches, Indices]:
    return local_batches(cell, source.data, source.clients, clients, source.round)


def _companions(cell: AttackCell, setup: Setup, victim: int, reading: int) -> tuple[int, ...]:
    generator = rng.generator(cell.seed, "companions", data_key(cell, setup.data), reading)
    order = generator.permutation(cell.federated.clients)
    others = cell.federated.per_round - cell.grants.dummies - 1
    return tuple(int(client) for client in order if client != victim)[:others]
