"""Candidates in the granted gallery, as tensors."""

from collections.abc import Iterator

import torch
from torch import Tensor

from bench.gradients import one_hot
from bench.trip import Reading

_CHUNK = 64  # candidates in parallel


def candidates(reading: Reading, members: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return inputs (candidate, *shape) and label probabilities (candidate, class) of the candidates at the gallery
    positions `members`; None takes all candidates."""
    assert reading.gallery_inputs is not None and reading.gallery_labels is not None
    like = next(iter(reading.values.values()))
    inputs, labels = reading.gallery_inputs, reading.gallery_labels
    if members is not None:
        inputs, labels = inputs[members], labels[members]
    return inputs.to(like), one_hot(labels, reading.classes, like.dtype).to(like)


def alone(inputs: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield chunks of `inputs` (candidate, *shape) and `targets` (candidate, class), with a new second axis of length
    1."""
    yield from zip(inputs[:, None].split(_CHUNK), targets[:, None].split(_CHUNK), strict=True)


def by_label(reading: Reading, scores: Tensor, labels: Tensor | None) -> tuple[list[Tensor], list[int]]:
    """Return, for each label, its candidates' positions in the gallery (highest of `scores` first), and its count.
    `scores` (candidate,). The count is the number of examples with the label in `labels` (example,). None for `labels`
    puts all candidates in a single group."""
    assert reading.gallery_labels is not None
    if labels is None:
        return [scores.argsort(descending=True)], [reading.examples]
    kinds, counts = labels.cpu().unique(return_counts=True)
    own = [torch.nonzero(reading.gallery_labels.cpu() == kind)[:, 0] for kind in kinds]
    return [each[scores[each].argsort(descending=True)] for each in own], counts.tolist()
