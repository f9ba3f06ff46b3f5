"""Search single examples with their labels' priors.

What a defense hides (by noise, signs, dropped coordinates) is left to the prior. The prior of the example's class is
sharper than the prior of all classes."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from bench.attacks.search.space import LEAST_OF_CLASS, Gaussian, public_space
from bench.trip import Reading, Reconstruction

Search = Callable[[Reading, Gaussian | None], Reconstruction]
History = tuple[tuple[int, tuple[float, ...]], ...]


def by_label(reading: Reading, search: Search) -> Reconstruction | None:
    """Attack single examples behind a defense, with the prior of each example's label: readings with equal labels are
    searched together. Return None for several examples behind a reading, without granted labels, and for readings as
    they are without a defense: these leave little to the prior.

    - `reading`: the batch of attacked readings.
    - `search`: the search, as a function of a batch and its space; None takes the space of all classes."""
    description = reading.description
    if reading.labels is None or reading.examples > 1 or description is None or not description.changes:
        return None
    groups: dict[int | None, list[int]] = {}
    for row, label in enumerate(reading.labels[:, 0].tolist()):
        enough = int((reading.public_labels == label).sum()) >= LEAST_OF_CLASS
        groups.setdefault(label if enough else None, []).append(row)
    parts = [
        search(reading.of(rows), None if label is None else public_space(reading, label))
        for label, rows in groups.items()
    ]
    return interleaved(parts, list(groups.values()))


def interleaved(parts: Sequence[Reconstruction], groups: Sequence[Sequence[int]]) -> Reconstruction:
    """Join the reconstructions of several batches into one, in another order of readings. The history has the marks of
    all batches; between a batch's marks, its last loss and last examples count.

    - `parts`: the reconstructions.
    - `groups`: for each batch, the positions of its readings in the result."""
    order = torch.tensor([row for rows in groups for row in rows]).argsort()
    marks = sorted({mark for part in parts for mark, _ in part.history})
    at = [_latest([mark for mark, _ in part.history], marks) for part in parts]

    def column(name: str) -> Tensor:
        return torch.cat([getattr(part, name) for part in parts])[order]

    status = [word for part in parts for word in part.status]
    return replace(
        parts[0],
        inputs=column("inputs"),
        labels=column("labels"),
        loss=column("loss"),
        evaluations=column("evaluations"),
        outer=column("outer"),
        restarts=column("restarts"),
        status=tuple(status[n] for n in order.tolist()),
        history=_history([part.history for part in parts], marks, at, order),
        trajectory=_trajectory([part.trajectory for part in parts], groups, at),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def _latest(own: Sequence[int], marks: Sequence[int]) -> list[int]:
    """Return for each of `marks` the position in `own` (ascending) of the last mark until then, at least 0."""
    return [max(0, sum(mark <= each for mark in own) - 1) for each in marks]


def _history(histories: Sequence[History], marks: Sequence[int], at: Sequence[list[int]], order: Tensor) -> History:
    if not all(histories):
        return ()
    rows = [
        [loss for history, positions in zip(histories, at, strict=True) for loss in history[positions[n]][1]]
        for n in range(len(marks))
    ]
    return tuple((mark, tuple(row[n] for n in order.tolist())) for mark, row in zip(marks, rows, strict=True))


def _trajectory(
    ways: Sequence[Tensor | None], groups: Sequence[Sequence[int]], at: Sequence[list[int]]
) -> Tensor | None:
    """Return the trajectory of the first readings, as many as have a trajectory in their batch."""
    shown: dict[int, Tensor] = {}
    for way, rows, positions in zip(ways, groups, at, strict=True):
        if way is None or not positions:
            return None
        shown |= {row: way[positions, n] for n, row in enumerate(rows[: way.shape[1]])}
    first = next(row for row in range(len(shown) + 1) if row not in shown)
    return torch.stack([shown[row] for row in range(first)], 1) if first else None
