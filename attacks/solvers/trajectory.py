"""Trajectory of a minimisation: the least losses, with their points, at powers of two and at the end."""

import torch
from torch import Tensor


class Trajectory:
    """Progress of many minimisations (rows), for reports of loss against budget. The history keeps the least loss and
    its point at each *mark*: after 1, 2, 4, … evaluations, and at the limit. The attribute `losses` (mark, row) covers
    all rows; `points` (mark, row, variable) covers the first rows only.

    Arguments:

    - `evaluations`: limit per row, the last mark.
    - `x` (row, variable): starting points of all rows.
    - `traced`: number of rows, from the first, whose points are kept."""

    def __init__(self, evaluations: int, x: Tensor, traced: int) -> None:
        powers = [1 << n for n in range(evaluations.bit_length()) if 1 << n < evaluations]
        self.marks = (*powers, evaluations)
        self.losses = torch.full((len(self.marks), len(x)), torch.inf, dtype=x.dtype, device=x.device)
        self.points = x.new_zeros((len(self.marks), min(traced, len(x)), x.shape[1]))
        self._next = torch.zeros(len(x), dtype=torch.long)  # per row, the mark to fill
        self._counts = torch.tensor(self.marks)

    def note(self, rows: Tensor, evaluations: Tensor, loss: Tensor, x: Tensor) -> None:
        """Record progress after an evaluation: for each minimisation (row) that has just reached a mark (1, 2, 4, …
        evaluations), keep its least loss and point.

        - `rows` (position,): numbers of the rows evaluated last, on the host (CPU).
        - `evaluations` (position,): evaluations used by these rows, on the host.
        - `loss` (row,), `x` (row, variable): least losses and their points, of all rows."""
        reached = evaluations >= self._counts[self._next[rows].clamp_max(len(self.marks) - 1)]
        if not reached.any():
            return
        for row in rows[reached].tolist():
            self._fill(row, int(self._next[row]), loss, x)
            self._next[row] += 1

    def close(self, rows: Tensor, loss: Tensor, x: Tensor) -> None:
        """Record the result of finished minimisations (rows): store their final loss and point at every mark (1, 2, 4,
        … evaluations) not yet reached.

        - `rows`: numbers of the finished rows.
        - `loss` (row,), `x` (row, variable): least losses and their points, of all rows."""
        for row in rows.tolist():
            for mark in range(int(self._next[row]), len(self.marks)):
                self._fill(row, mark, loss, x)
            self._next[row] = len(self.marks)

    def until(self, last: int) -> tuple[tuple[int, ...], list[int]]:
        """Return the marks actually reached (1, 2, 4, … evaluations): those below `last`, and `last` itself, and the
        position of each in the first axis of `losses`. `last` is the largest number of evaluations of any row
        (minimisation)."""
        before = [n for n, mark in enumerate(self.marks) if mark < last]
        return (*(self.marks[n] for n in before), last), [*before, len(self.marks) - 1]

    def _fill(self, row: int, mark: int, loss: Tensor, x: Tensor) -> None:
        if mark < len(self.marks):
            self.losses[mark, row] = loss[row]
            if row < self.points.shape[1]:
                self.points[mark, row] = x[row]
