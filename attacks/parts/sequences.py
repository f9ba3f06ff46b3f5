"""Sequences of labels: in the order of the local steps, ascending within a step, as its mean knows no order."""

from collections.abc import Callable, Iterator
from math import comb, factorial, prod

import torch
from torch import Tensor

from bench.attacks.parts.last_layer import LastLayer

Score = Callable[[Tensor], Tensor]  # sequences (sequence, example) → (sequence,), the lower the likelier


def count_sequences(layer: LastLayer, labels: Tensor | None) -> int:
    """How many sequences there are: of `labels` (example,) where they are known, at most; of all classes where not."""
    if labels is None:
        batches: int = comb(layer.batch + layer.classes - 1, layer.batch) ** layer.steps
        return batches
    if layer.steps == 1:
        return 1
    alike = [factorial(count) for count in torch.bincount(labels).tolist()]
    return factorial(layer.examples) // prod(alike)


def all_sequences(layer: LastLayer, labels: Tensor | None) -> Tensor:
    """Every sequence, (sequence, example); within a step labels ascend, as its mean knows no order."""
    if labels is None:
        batches = torch.combinations(torch.arange(layer.classes), layer.batch, with_replacement=True)
        steps = torch.cartesian_prod(*[torch.arange(len(batches))] * layer.steps)
        return batches[steps.reshape(-1, layer.steps)].flatten(1)
    if layer.steps == 1:
        ascending: Tensor = labels.sort().values
        return ascending[None]
    orders: Tensor = canonical(torch.tensor(list(_orders(labels.tolist()))), layer.batch).unique(dim=0)
    return orders


def _orders(labels: list[int]) -> Iterator[tuple[int, ...]]:
    """The distinct orders of labels."""
    if not labels:
        yield ()
    for label in sorted(set(labels)):
        rest = list(labels)
        rest.remove(label)
        for tail in _orders(rest):
            yield (label, *tail)


def descend(layer: LastLayer, score: Score, starts: Tensor, labels_known: bool) -> tuple[Tensor, Tensor]:
    """Coordinate descent from each start (start, example): the sequences met, (sequence, example), and their
    scores.  A move changes one label (unless they are known) or swaps two of different steps."""
    pool: dict[tuple[int, ...], float] = {}
    for start in starts:
        now = canonical(start[None], layer.batch)[0]
        while True:
            near = torch.cat([now[None], neighbours(layer, now, labels_known)])
            scores = score(near)
            pool.update(zip(map(tuple, near.tolist()), scores.tolist(), strict=True))
            best = int(scores.argmin())
            if scores[best] >= scores[0]:
                break
            now = near[best]
    return torch.tensor(list(pool)), torch.tensor(list(pool.values()), dtype=torch.float64)


def neighbours(layer: LastLayer, now: Tensor, labels_known: bool) -> Tensor:
    """Sequences (sequence, example) that differ from `now` (example,) by one move of `descend`."""
    rows = []
    count = len(now)
    if not labels_known:
        for at in range(count):
            for label in range(layer.classes):
                if label != now[at]:
                    rows.append(now.clone())
                    rows[-1][at] = label
    for i in range(count):
        for j in range(i + 1, count):
            if i // layer.batch != j // layer.batch and now[i] != now[j]:
                rows.append(now.clone())
                rows[-1][[i, j]] = now[[j, i]]
    return canonical(torch.stack(rows), layer.batch) if rows else now.new_zeros((0, count))


def canonical(sequences: Tensor, batch: int) -> Tensor:
    """With labels ascending within each step."""
    steps: Tensor = sequences.unflatten(1, (-1, batch))
    return steps.sort(2).values.flatten(1)
