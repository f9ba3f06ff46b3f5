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
    """Return the number of distinct examples behind each reading in the batch `reading`, at most `reading.examples`.
    The number is lower if the client repeats its examples over local steps. Repeats count only for a single sender, not
    in an aggregate."""
    if reading.senders > 1:
        return reading.examples
    return min(reading.examples, reading.client_examples)


def tied_examples(labels: Tensor, distinct: int) -> Tensor:
    """Return for each position in a client's local steps which distinct example is used there: (..., position), numbers
    from 0. A client with several passes over its data uses each example several times, so an attack searches distinct
    examples only; indexed by the result, their inputs (reading, example, *shape) become inputs at all positions.

    `labels` (..., position) are class numbers. The first `distinct` positions are the first pass over the client's
    data: position p holds example p. In later passes, the order is unknown: a position gets the example with the same
    label in the first pass, and among equal labels the first that the pass has not yet used. A position without such an
    example gets -1."""
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
    """Return the lengths of the parts in a client's local training within which the order of examples has no effect on
    the update, so that a search over orders needs one order per part. A part lies in a single step and in a single pass
    over the client's examples. `batches` are the numbers of examples per step, and `distinct` the number per pass."""
    examples = sum(batches)
    ends = sorted({*accumulate(batches), *range(distinct, examples, distinct)})
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]
