"""Candidates in the granted gallery, as tensors."""

from collections.abc import Iterator

import torch
from torch import Tensor

from bench.gradients import one_hot
from bench.trip import Reading

_CHUNK = 64  # candidates in parallel


def candidates(reading: Reading, members: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return inputs (candidate, *shape) and label probabilities (candidate, class) of the candidates in the gallery of
    `reading` (the granted list). `members` are positions in the gallery; None takes all candidates."""
    assert reading.gallery_inputs is not None and reading.gallery_labels is not None
    like = next(iter(reading.values.values()))
    inputs, labels = reading.gallery_inputs, reading.gallery_labels
    if members is not None:
        inputs, labels = inputs[members], labels[members]
    return inputs.to(like), one_hot(labels, reading.classes, like.dtype).to(like)


def alone(inputs: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Turn each candidate into a batch with a single example, for gradients per candidate. Yield inputs (candidate, 1,
    *shape) and targets (candidate, 1, class), in chunks of 64 candidates.

    - `inputs` (candidate, *shape): the candidates' inputs.
    - `targets` (candidate, class): their label probabilities."""
    yield from zip(inputs[:, None].split(_CHUNK), targets[:, None].split(_CHUNK), strict=True)


def by_label(reading: Reading, scores: Tensor, labels: Tensor | None) -> tuple[list[Tensor], list[int]]:
    """Group the candidates in the reading's gallery (the granted list of candidates) by label. Return two lists with an
    entry for each label in `labels`: the candidates with this label as positions in the gallery, and the number of
    examples with this label.

    - `reading`: the attacked reading; it holds the gallery.
    - `scores` (candidate,): order of the candidates in a group, highest first.
    - `labels` (example,): class numbers of the examples behind the reading; None puts all candidates in a single group.
    """
    assert reading.gallery_labels is not None
    if labels is None:
        return [scores.argsort(descending=True)], [reading.examples]
    kinds, counts = labels.cpu().unique(return_counts=True)
    own = [torch.nonzero(reading.gallery_labels.cpu() == kind)[:, 0] for kind in kinds]
    return [each[scores[each].argsort(descending=True)] for each in own], counts.tolist()
