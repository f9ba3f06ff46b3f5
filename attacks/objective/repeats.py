"""More local steps than examples: which of a reading's positions hold the same example.

A client goes through its D examples in a new order, and begins again when all are used.  Positions 0 … D-1 of its
steps are a first pass over distinct examples; each later pass has the same ones in another order.  An attack
that knows this seeks D examples and not B·L, each with the evidence of all its steps.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from bench.trip import Reading


def distinct_examples(reading: Reading) -> int:
    """Distinct examples behind each reading: `reading.examples`, or fewer where its client goes through its examples
    more than once.  An aggregate over several senders is not told apart."""
    if reading.senders > 1:
        return reading.examples
    return min(reading.examples, reading.client_examples)


def tied_examples(labels: Tensor, distinct: int) -> Tensor:
    """The example at each position, a number below `distinct`: labels (..., position) int64 → the same shape.

    Position p of the first pass is example p.  A later pass is matched by labels, of equal ones in ascending
    order of positions: labels tell no more.  -1 where a later pass has a label more often than the first.
    `inputs[:, ties]` of distinct inputs (reading, example, *shape) are those of the positions.
    """
    flat = labels.flatten(0, -2) if labels.dim() > 1 else labels[None]
    first = flat[:, :distinct]
    ties = [torch.arange(first.shape[1]).expand_as(first)]
    rank_first = _rank(first)
    for later in flat[:, distinct:].split(distinct, dim=1):
        same = (later[:, :, None] == first[:, None]) & (_rank(later)[:, :, None] == rank_first[:, None])
        ties.append(torch.where(same.any(2), same.int().argmax(2), -1))
    return torch.cat(ties, 1).reshape(labels.shape)


def _rank(labels: Tensor) -> Tensor:
    """How many positions before have the same label: (row, position) → the same shape."""
    return (labels[:, :, None] == labels[:, None, :]).long().tril(-1).sum(2)


def segments(batches: Sequence[int], distinct: int) -> list[int]:
    """The lengths of runs of positions within one step, of `batches` examples, and one pass: there, the order of
    examples means nothing."""
    examples = sum(batches)
    ends = sorted({*accumulate(batches), *range(distinct, examples, distinct)})
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]
