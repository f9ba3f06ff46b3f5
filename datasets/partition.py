"""Who holds what: each client's examples of the training split, by key."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bench import rng
from bench.errors import BenchError

Indices = NDArray[np.int64]


def client_indices(
    labels: NDArray[np.int64], *, kind: str, clients: int, client_examples: int | None, seed: int
) -> Indices:
    """Positions in the training split, (client, example), each client's in an order by key.

    `labels` (example,) are the split's; `client_examples` None shares the split out equally (rounded
    down to an even number where a client has two parts).  No client holds an example twice.

    `iid`: blocks of a permutation.  `two-shard` (McMahan et al. 2017; Fed-αCDP's authors): the split
    sorted by label, cut into shards, two per client.  Both hand out the split once over, disjointly, while
    clients·examples fit, and then again in another permutation: at ten times the size every example
    sits with ten clients, and clients are *not* disjoint.
    `two-class` (Risk-balanced): two random classes per client, half of its examples from each, every client
    drawn by itself: clients may share examples.

    Raises `BenchError` for an unknown kind or sizes that the split cannot serve.
    """
    if kind not in _KINDS:
        raise BenchError(f"unknown partition {kind!r}; there are {', '.join(_KINDS)}")
    size = len(labels) // clients if client_examples is None else client_examples
    if kind != "iid":
        if client_examples is not None and size % 2:
            raise BenchError(
                f"{kind} gives each client two equal parts; client_examples must be even, got {size}"
            )
        size -= size % 2
    if not 1 <= size <= len(labels):
        raise BenchError(
            f"{clients} clients with {size} of {len(labels)} examples each cannot be; "
            "set client_examples, or fewer clients"
        )
    held = _KINDS[kind](labels, clients, size, seed)
    orders = [rng.generator(seed, "partition", kind, "order", i).permutation(size) for i in range(clients)]
    return np.take_along_axis(held, np.stack(orders), axis=1)


def _iid(labels: NDArray[np.int64], clients: int, size: int, seed: int) -> Indices:
    def once(number: int) -> Indices:
        order = rng.generator(seed, "partition", "iid", number).permutation(len(labels))
        return order[: len(labels) // size * size].reshape(-1, size)

    return _over(once, clients)


def _two_shard(labels: NDArray[np.int64], clients: int, size: int, seed: int) -> Indices:
    # 2N shards; where 2N do not fit, as many as do, and the next clients get the next time over.
    # The authors permute each class N/100 times over instead, which can hand a client one example twice.
    shards = 2 * min(clients, len(labels) // size)
    starts = np.arange(shards) * len(labels) // shards  # spread, so that no class is cut off at the end

    def once(number: int) -> Indices:
        draw = rng.generator(seed, "partition", "two-shard", number)
        order = draw.permutation(len(labels))
        by_label = order[np.argsort(labels[order], kind="stable")]
        cut = by_label[starts[:, None] + np.arange(size // 2)]
        dealt: Indices = cut[draw.permutation(shards)].reshape(-1, size)
        return dealt

    return _over(once, clients)


def _over(once: Callable[[int], Indices], clients: int) -> Indices:
    """The first `clients` rows of as many passes over the split as they need."""
    first = once(0)
    passes = -(-clients // len(first))
    return np.concatenate([first, *(once(number) for number in range(1, passes))])[:clients]


def _two_class(labels: NDArray[np.int64], clients: int, size: int, seed: int) -> Indices:
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < 2 or counts.min() < size // 2:
        raise BenchError(
            f"two-class needs two classes and {size // 2} examples of each; "
            f"there are {len(classes)}, the smallest with {counts.min()}: set client_examples"
        )
    members = [np.flatnonzero(labels == value) for value in classes]

    def one(client: int) -> Indices:
        draw = rng.generator(seed, "partition", "two-class", client)
        chosen = draw.choice(len(classes), 2, replace=False)
        return np.concatenate([draw.choice(members[i], size // 2, replace=False) for i in chosen])

    return np.stack([one(client) for client in range(clients)])


_KINDS: dict[str, Callable[[NDArray[np.int64], int, int, int], Indices]] = {
    "iid": _iid,
    "two-shard": _two_shard,
    "two-class": _two_class,
}
