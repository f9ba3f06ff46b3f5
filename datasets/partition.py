"""Partition: which training examples each client holds, drawn by key."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bench import rng
from bench.errors import BenchError

Indices = NDArray[np.int64]


def client_size(kind: str, examples: int, *, clients: int, client_examples: int | None) -> int:
    """Return the number of examples per client: `client_examples`, or if None an equal share of the training split.

    - `kind`: name of the partition. An equal share is rounded down, for "two-shard" and "two-class" to an even number.
    - `examples`: size of the training split; `clients`: number of clients."""
    if client_examples is not None:
        return client_examples
    size = examples // clients
    return size if kind == "iid" else size - size % 2


def refusal(kind: str, examples: int, classes: int, *, clients: int, client_examples: int | None) -> str | None:
    """Return the reason why a partition of the data among clients is impossible, or None if it is possible. The size of
    the smallest class is not checked here, because this needs the labels.

    - `kind`: name of the partition: "iid", "two-shard" or "two-class".
    - `examples`, `classes`: numbers of examples and of classes.
    - `clients`, `client_examples`: number of clients, and of examples per client (None: an equal share)."""
    if kind not in _KINDS:
        return f"unknown partition {kind!r}; there are {', '.join(_KINDS)}"
    size = client_size(kind, examples, clients=clients, client_examples=client_examples)
    if size < 1:
        return f"no examples for {clients} clients, of {examples} for training"
    if size > examples:
        return f"no client can hold {size} examples, of {examples} for training"
    if kind != "iid" and size % 2:
        return f"{kind} gives a client two equal parts, {size} examples are odd"
    if kind == "two-class" and classes < 2:
        return "two-class needs two classes, the data have one"
    return None


def client_indices(
    labels: NDArray[np.int64], *, kind: str, clients: int, client_examples: int | None, seed: int
) -> Indices:
    """Divide the training split among clients: return each client's positions in the split, (client, example), in a
    random order. No client holds an example twice.

    - `labels` (example,): class numbers of the split.
    - `clients`, `client_examples`: number of clients, and of examples per client (None: an equal share).
    - `seed`: seed of all random choices.
    - `kind`: name of the partition, from the list below.

    Partitions:

    - `iid` cuts a random order of the split into blocks.
    - `two-shard` (McMahan et al. 2017; Fed-αCDP's authors) sorts the split by label, cuts it into shards, and gives
      each client two.
    - `two-class` (Risk-balanced) draws two random classes for each client, and half of its examples from each.

    `iid` and `two-shard` distribute the whole split before they begin again with another order: if all clients together
    hold ten times the split's size, ten clients hold each example. With `two-class`, several clients may hold the same
    example. Raises `BenchError` if `refusal` gives a reason, or if a class is too small."""
    reason = refusal(kind, len(labels), len(np.unique(labels)), clients=clients, client_examples=client_examples)
    if reason is not None:
        raise BenchError(f"{reason}; set partition, clients or client_examples")
    size = client_size(kind, len(labels), clients=clients, client_examples=client_examples)
    held = _KINDS[kind](labels, clients, size, seed)
    orders = [rng.generator(seed, "partition", kind, "order", i).permutation(size) for i in range(clients)]
    return np.take_along_axis(held, np.stack(orders), axis=1)


def _iid(labels: NDArray[np.int64], clients: int, size: int, seed: int) -> Indices:
    def one_pass(number: int) -> Indices:
        order = rng.generator(seed, "partition", "iid", number).permutation(len(labels))
        return order[: len(labels) // size * size].reshape(-1, size)

    return _over(one_pass, clients)


def _two_shard(labels: NDArray[np.int64], clients: int, size: int, seed: int) -> Indices:
    # 2N shards for N clients; if fewer fit, the remaining clients get shards from further passes over the split.
    # The authors instead repeat each class N/100 times, which can give a client an example twice.
    shards = 2 * min(clients, len(labels) // size)
    starts = np.arange(shards) * len(labels) // shards  # spread over the split, so that no class is missing

    def one_pass(number: int) -> Indices:
        random = rng.generator(seed, "partition", "two-shard", number)
        order = random.permutation(len(labels))
        by_label = order[np.argsort(labels[order], kind="stable")]
        cut = by_label[starts[:, None] + np.arange(size // 2)]
        dealt: Indices = cut[random.permutation(shards)].reshape(-1, size)
        return dealt

    return _over(one_pass, clients)


def _over(one_pass: Callable[[int], Indices], clients: int) -> Indices:
    first = one_pass(0)
    passes = -(-clients // len(first))
    return np.concatenate([first, *(one_pass(number) for number in range(1, passes))])[:clients]


def _two_class(labels: NDArray[np.int64], clients: int, size: int, seed: int) -> Indices:
    classes, counts = np.unique(labels, return_counts=True)
    if counts.min() < size // 2:
        raise BenchError(
            f"two-class needs {size // 2} examples of each class, the smallest has {counts.min()}; set client_examples"
        )
    members = [np.flatnonzero(labels == value) for value in classes]

    def members_of(client: int) -> Indices:
        random = rng.generator(seed, "partition", "two-class", client)
        chosen = random.choice(len(classes), 2, replace=False)
        return np.concatenate([random.choice(members[i], size // 2, replace=False) for i in chosen])

    return np.stack([members_of(client) for client in range(clients)])


_KINDS: dict[str, Callable[[NDArray[np.int64], int, int, int], Indices]]
_KINDS = {"iid": _iid, "two-shard": _two_shard, "two-class": _two_class}
