"""Label sequences: labels in the order of local steps, ascending within a step, whose mean gradient shows no order.

A pass uses each of a client's examples once. If a client repeats its examples, each pass has the labels of the first
pass (`objective/repeats.py`). The last layer (`LastLayer`) gives the lengths of steps and passes."""

from collections.abc import Callable, Iterator
from itertools import permutations, product
from math import comb, factorial, perm, prod

import numpy as np
import torch
from torch import Tensor

from bench.attacks.labels.last_layer import LastLayer
from bench.attacks.objective.repeats import segments, tied_examples

Score = Callable[[Tensor], Tensor]  # sequences (sequence, example) → (sequence,), the lower the likelier


def count_sequences(layer: LastLayer, labels: Tensor | None) -> int:
    """Return an upper bound on the number of label sequences: if it is small, an attack scores every sequence,
    otherwise it searches. A sequence lists all examples' labels in the order of local steps.

    - `layer`: the last layer; it gives the numbers of examples per step.
    - `labels` (example,): the labels if known, in any order; None allows any labels."""
    count: int
    if layer.distinct < layer.examples:
        lengths = [min(layer.distinct, layer.examples - at) for at in range(0, layer.examples, layer.distinct)]
        count = layer.classes**layer.distinct * prod(perm(layer.distinct, length) for length in lengths[1:])
        return count
    if labels is None:
        count = prod(comb(batch + layer.classes - 1, batch) for batch in layer.batches)
        return count
    if layer.steps == 1:
        return 1
    alike = [factorial(count) for count in torch.bincount(labels).tolist()]
    return factorial(layer.examples) // prod(alike)


def all_sequences(layer: LastLayer, labels: Tensor | None) -> Tensor:
    """Return every possible label sequence: (sequence, example). A sequence lists all examples' labels in the order of
    local steps.

    - `layer`: the last layer; it gives the numbers of examples per step.
    - `labels` (example,): the labels if known, in any order; None allows any labels."""
    sequences: Tensor
    if layer.distinct < layer.examples:
        return _all_passes(layer, labels)
    if labels is None:
        classes = torch.arange(layer.classes)
        batches = [torch.combinations(classes, batch, with_replacement=True) for batch in layer.batches]
        steps = torch.cartesian_prod(*[torch.arange(len(batch)) for batch in batches]).reshape(-1, layer.steps)
        return torch.cat([batch[at] for batch, at in zip(batches, steps.T, strict=True)], 1)
    if layer.steps == 1:
        sequences = labels.sort().values[None]
    else:
        sequences = canonical(torch.tensor(list(_orders(labels.tolist()))), layer).unique(dim=0)
    return sequences


def _all_passes(layer: LastLayer, labels: Tensor | None) -> Tensor:
    distinct = layer.distinct
    once = torch.cartesian_prod(*[torch.arange(layer.classes)] * distinct).reshape(-1, distinct)
    lengths = [min(distinct, layer.examples - at) for at in range(distinct, layer.examples, distinct)]
    later = product(*(permutations(range(distinct), length) for length in lengths))
    at = torch.tensor([[*range(distinct), *(n for order in orders for n in order)] for orders in later])
    sequences: Tensor = canonical(once[:, at].flatten(0, 1), layer).unique(dim=0)
    if labels is None:
        return sequences
    return sequences[(sequences.sort(1).values == labels.sort().values).all(1)]


def _orders(labels: list[int]) -> Iterator[tuple[int, ...]]:
    if not labels:
        yield ()
    for label in sorted(set(labels)):
        rest = list(labels)
        rest.remove(label)
        for tail in _orders(rest):
            yield (label, *tail)


def descend(layer: LastLayer, score: Score, starts: Tensor, labels_known: bool) -> tuple[Tensor, Tensor]:
    """Search for label sequences with a low score, by coordinate descent. Return all visited sequences (sequence,
    example) and their scores (sequence,). A sequence lists all examples' labels in the order of local steps.

    - `layer`: the last layer; it gives the numbers of examples per step.
    - `score`: function from sequences (sequence, example) to scores (sequence,).
    - `starts` (start, example): sequences at which the descent begins.
    - `labels_known`: True allows only swaps of two labels between local steps within a pass over the client's examples;
      False also changes a label."""
    pool: dict[tuple[int, ...], float] = {}
    for start in starts:
        now = canonical(start[None], layer)[0]
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
    """Return the label sequences (sequence, example) that differ from a given sequence by a swap of two labels between
    local steps.

    - `layer`: the last layer; it gives the numbers of examples per step.
    - `now` (example,): the given sequence, labels in the order of local steps.
    - `labels_known`: False adds sequences with a single changed label."""
    rows = []
    count, ties, step_of = len(now), tied_examples(now, layer.distinct), layer.step_of
    if not labels_known:
        for example in range(layer.distinct):
            for label in range(layer.classes):
                if label != now[example]:
                    rows.append(now.where(ties != example, label))
    for i in range(count):
        for j in range(i + 1, count):
            one_pass = i // layer.distinct == j // layer.distinct
            if one_pass and step_of[i] != step_of[j] and now[i] != now[j]:
                rows.append(now.clone())
                rows[-1][[i, j]] = now[[j, i]]
    return canonical(torch.stack(rows), layer) if rows else now.new_zeros((0, count))


def any_sequence(layer: LastLayer, labels: Tensor | None, draw: np.random.Generator) -> Tensor:
    """Draw a random label sequence (example,), labels by local step, as a start for a search.

    - `layer`: the last layer; it gives the numbers of examples per step.
    - `labels` (example,): the labels if known, in any order; None draws the labels too.
    - `draw`: random generator."""
    distinct, examples = layer.distinct, layer.examples
    if labels is None:
        first = torch.from_numpy(draw.integers(0, layer.classes, distinct))
        rest = examples % distinct
    else:
        first, rest = _first_pass(labels, distinct), 0
    passes = [first[torch.from_numpy(draw.permutation(distinct))] for _ in range(examples // distinct)]
    if labels is None:
        passes.append(first[torch.from_numpy(draw.permutation(distinct))][:rest])
    else:
        counts = torch.bincount(labels) - (examples // distinct) * torch.bincount(
            first, minlength=int(labels.max()) + 1
        )
        last = torch.repeat_interleave(torch.arange(len(counts)), counts)
        passes.append(last[torch.from_numpy(draw.permutation(len(last)))])
    return canonical(torch.cat(passes)[None], layer)[0]


def _first_pass(labels: Tensor, distinct: int) -> Tensor:
    """Choose the labels (example,) of a client's first pass over `distinct` examples, given the labels over all passes.
    Each label's count is at least its total divided by the number of passes, and at most its total divided by the
    number of full passes."""
    full = len(labels) // distinct
    counts = torch.bincount(labels)
    of_pass, most = -(-counts // (full + 1 if len(labels) % distinct else full)), counts // full
    while int(of_pass.sum()) < distinct:
        of_pass[int((most - of_pass).argmax())] += 1
    return torch.repeat_interleave(torch.arange(len(counts)), of_pass)


def canonical(sequences: Tensor, layer: LastLayer) -> Tensor:
    """Sort label sequences (sequence, example) into a standard order, so that sequences with the same update become
    equal and duplicates can be removed. Labels are sorted within each part that belongs to the same local step and the
    same pass over the client's examples.

    - `sequences` (sequence, example): labels in the order of local steps.
    - `layer`: the last layer; it gives the numbers of examples per step and per pass."""
    lengths = segments(layer.batches, layer.distinct)
    return torch.cat([part.sort(1).values for part in sequences.split(lengths, dim=1)], 1)
