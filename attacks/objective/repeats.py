"""Repeated examples in a client's local steps: more positions in the steps than examples.

A client visits its D examples in a new order per pass. Positions 0 … D-1 are a first pass over distinct examples; later
passes repeat them in other orders. An attack can then search D examples instead of a different example for each
position in L steps with B examples, with evidence from all steps."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from bench.trip import Reading


def distinct_examples(reading: Reading) -> int:
    """Return the number of distinct examples behind each reading, at most `reading.examples`. Repeats count only for a
    single sender, not in an aggregate over several senders."""
    if reading.senders > 1:
        return reading.examples
    return min(reading.examples, reading.client_examples)


def tied_examples(labels: Tensor, distinct: int) -> Tensor:
    """Return the number of the example at each position of `labels` (..., position), in the same shape. The first
    `distinct` positions are the first pass: position p holds example p. Later passes are matched by label; equal labels
    are matched by ascending position, because labels tell no more. The number is -1 if a later pass has a label more
    often than the first. Indexing inputs (reading, example, *shape) with the result gives inputs at all positions."""
    flat = labels.flatten(0, -2) if labels.dim() > 1 else labels[None]
    first = flat[:, :distinct]
    ties = [torch.arange(first.shape[1]).expand_as(first)]
    rank_first = _rank(first)
    for later in flat[:, distinct:].split(distinct, dim=1):
        same = (later[:, :, None] == first[:, None]) & (_rank(later)[:, :, None] == rank_first[:, None])
        ties.append(torch.where(same.any(2), same.int().argmax(2), -1))
    return torch.cat(ties, 1).reshape(labels.shape)


def _rank(labels: Tensor) -> Tensor:
    return (labels[:, :, None] == labels[:, None, :]).long().tril(-1).sum(2)


def segments(batches: Sequence[int], distinct: int) -> list[int]:
    """Split positions into segments, each within a step and a pass; return the segments' lengths. `batches` are the
    examples per step, and `distinct` the examples per pass. The order of examples in a segment does not change the
    update."""
    examples = sum(batches)
    ends = sorted({*accumulate(batches), *range(distinct, examples, distinct)})
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]
