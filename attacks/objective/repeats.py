"""More local positions than examples: repeated examples in a client's local steps.

A client visits its D examples in a new order per pass. Positions 0 … D-1 are a first pass over distinct examples; later
passes repeat them in other orders. An attack can then search D examples instead of B·L, with evidence from all their
steps.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from bench.trip import Reading


def distinct_examples(reading: Reading) -> int:
    """Distinct examples behind each reading, at most `reading.examples`. Repeats are resolved only for a single sender,
    not in an aggregate over several."""
    if reading.senders > 1:
        return reading.examples
    return min(reading.examples, reading.client_examples)


def tied_examples(labels: Tensor, distinct: int) -> Tensor:
    """Example number (below `distinct`) at each position: labels (..., position) int64 → the same shape.

    Position p in the first pass is example p. Later passes are matched by label, equal labels by ascending position:
    labels carry no more information. -1 if a later pass has a label more often than the first. Distinct inputs
    (reading, example, *shape) are spread over positions by `inputs[:, ties]`.
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
    """Number of earlier positions with the same label: (row, position) → the same shape."""
    return (labels[:, :, None] == labels[:, None, :]).long().tril(-1).sum(2)


def segments(batches: Sequence[int], distinct: int) -> list[int]:
    """Lengths of runs of positions within a step and a pass, whose order has no effect."""
    examples = sum(batches)
    ends = sorted({*accumulate(batches), *range(distinct, examples, distinct)})
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]
