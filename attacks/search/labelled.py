"""Search with the priors of the examples' labels.

Behind noise, signs or dropped coordinates, the prior decides many details of an example. The prior for an example's
class is sharper than the prior for all classes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.attacks.objective.repeats import distinct_examples
from bench.attacks.search.clients import joined
from bench.attacks.search.space import LEAST_OF_CLASS, Gaussian, Space, public_space
from bench.trip import Reading, Reconstruction

Search = Callable[[Reading, Space | None], Reconstruction]
History = tuple[tuple[int, tuple[float, ...]], ...]


@dataclass(frozen=True, slots=True)
class EachSpace:
    """Batch search space: a Gaussian space for each example. Variables and inputs are (..., example, value)."""

    spaces: tuple[Gaussian, ...]
    """The examples' spaces, in their order."""

    def inputs(self, u: Tensor) -> Tensor:
        """Map a solver's variables `u` (..., example, value) to inputs in the same shape."""
        return torch.stack([space.inputs(part) for space, part in zip(self.spaces, u.unbind(-2), strict=True)], -2)

    def variables(self, x: Tensor) -> Tensor:
        """Map inputs `x` (..., example, value) to a solver's variables, in the same shape: the inverse to `inputs`."""
        return torch.stack([space.variables(part) for space, part in zip(self.spaces, x.unbind(-2), strict=True)], -2)

    def with_energy(self, u: Tensor) -> tuple[Tensor, Tensor]:
        return self.inputs(u), 0.5 * (u * u).sum(-1)


def by_label(reading: Reading, search: Search) -> Reconstruction | None:
    """Attack readings behind a defense, with each label's prior: readings with equal labels are searched
    together. Return None without granted labels, and for undefended readings. Return None for batches, too, if the
    defense adds no noise, or if the examples' order is unknown.

    - `reading`: the batch of attacked readings.
    - `search`: the search, as a function of a batch and its space; None takes the space of all classes."""
    description = reading.description
    if reading.labels is None or description is None or not description.changes:
        return None
    ordered = description.ordered or description.mixed or reading.steps > 1
    ordered = ordered or distinct_examples(reading) < reading.examples
    if reading.examples > 1 and (ordered or description.noise.variance == 0):
        return None
    counts = torch.bincount(reading.public_labels.clamp_min(-1) + 1, minlength=reading.classes + 1)[1:]
    groups: dict[tuple[int, ...], list[int]] = {}
    for row, labels in enumerate(reading.labels.tolist()):
        groups.setdefault(tuple(each if counts[each] >= LEAST_OF_CLASS else -1 for each in labels), []).append(row)
    parts = [search(reading.of(rows), _space(reading, labels)) for labels, rows in groups.items()]
    return interleaved(parts, list(groups.values()))


def _space(reading: Reading, labels: tuple[int, ...]) -> Space | None:
    """Return the space for examples with these `labels`; -1 takes all classes."""
    if all(label < 0 for label in labels):
        return None
    spaces = tuple(public_space(reading, None if label < 0 else label) for label in labels)
    return spaces[0] if len(spaces) == 1 else EachSpace(spaces)


def interleaved(parts: Sequence[Reconstruction], groups: Sequence[Sequence[int]]) -> Reconstruction:
    """Join several batches' reconstructions, with the readings in another order. The history has all batches' marks;
    between a batch's marks, its last loss and last examples count.

    - `parts`: the reconstructions.
    - `groups`: for each batch, the positions of its readings in the result."""
    order = torch.tensor([row for rows in groups for row in rows]).argsort()
    marks = sorted({mark for part in parts for mark, _ in part.history})
    at = [_latest([mark for mark, _ in part.history], marks) for part in parts]
    return replace(
        joined(parts).of(order.tolist()),
        history=_history([part.history for part in parts], marks, at, order),
        trajectory=_trajectory([part.trajectory for part in parts], groups, at),
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
