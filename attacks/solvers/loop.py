"""The one loop: evaluate every row's trial, keep each row's best, restart, drop or refill what has ended."""

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from bench.attacks.solvers.base import Solver, merge, select

TRAJECTORIES = 8  # rows whose points at the marks are kept


class Problem(Protocol):
    """Rows to minimise over, in parallel."""

    def start(self, row: int, restart: int) -> Tensor:
        """Where a row begins on that restart: (variable,)."""

    def narrowed(self, rows: Tensor, restarts: Tensor) -> "Evaluate":
        """The objective of some rows alone, each on that restart."""

    def scale(self, rows: Tensor) -> Tensor:
        """The loss (row,) of a candidate that explains nothing: losses are judged against it."""

    def floor(self, rows: Tensor) -> Tensor:
        """The loss (row,) that the noise behind a reading leaves at the truth: below it is no more to learn."""

    def units(self, rows: Tensor) -> Tensor:
        """By how much (row,) solvers, whose tolerances are absolute, see the loss enlarged."""


class Evaluate(Protocol):
    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(row, variable) → loss (row,) and gradient (row, variable)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long a row may go on.

    `evaluations` and `restarts` per row, restarts inside the budget.  A run ends when its solver
    says so, when it is no number, when its loss, in the problem's units, falls below `stop_loss` (looked at
    every `look_every` evaluations), or, while restarts are left, when its fair share of the budget is
    spent and its loss is still above `hopeless`·scale.  A run that ends above `enough`·scale is
    restarted while there is budget; one that its solver ended is not where `leave_stalled`, unless it is
    no better than nothing.  Both bounds are at least twice the floor that noise leaves.
    """

    evaluations: int
    restarts: int = 0
    stop_loss: float | None = None
    look_every: int = 1
    hopeless: float = 1e-2
    enough: float = 1e-4
    leave_stalled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Per row: the point of least loss over all runs, that loss, evaluations, restarts used; `runs` the
    restart on which the point was found.

    `marks` evaluation counts, powers of two and the last; `losses` (mark, row) the least loss so far by
    each row's own count; `trajectory` (mark, row, variable) the points that had it, of the first rows alone.
    """

    x: Tensor
    loss: Tensor
    evaluations: Tensor
    restarts: Tensor
    runs: Tensor
    marks: tuple[int, ...]
    losses: Tensor
    trajectory: Tensor


def minimise(
    problem: Problem, solver: Solver[Any], plan: Plan, rows: Tensor, *, width: int | None = None,
    spent: Tensor | None = None,
) -> Solution:  # fmt: skip
    """Minimise the given rows of `problem`, `width` of them side by side; every row as if it were alone.

    A row that has ended makes room for the next that waits.  `spent` (row,): evaluations that rows have
    behind them already.
    """
    count = len(rows)
    width = min(count, width or count)
    scale = problem.scale(rows)
    floor, units = 2 * problem.floor(rows), problem.units(rows)
    hopeless = torch.maximum(plan.hopeless * scale, floor)
    enough = torch.maximum(plan.enough * scale, floor)
    device = scale.device
    rows = rows.to(device)
    spent = torch.zeros(count, dtype=torch.long, device=device) if spent is None else spent.to(device)
    begun = spent.clone()
    restarts, run_spent, runs = torch.zeros_like(spent), torch.zeros_like(spent), torch.zeros_like(spent)
    share = torch.div(plan.evaluations - begun, plan.restarts + 1, rounding_mode="floor")

    active = torch.arange(width, device=device)  # positions in `rows`
    waiting = width  # the next position that is not yet begun
    x = torch.stack([problem.start(int(rows[p]), 0) for p in range(width)])
    best = torch.full((count,), torch.inf, dtype=x.dtype, device=device)
    best_x = torch.zeros((count, x.shape[1]), dtype=x.dtype, device=device)
    best_x[active] = x
    run_best = best.clone()
    record = _Record(plan.evaluations, best_x)
    state = solver.init(x)
    evaluate = problem.narrowed(rows[active], restarts[active])
    while len(active):
        loss, gradient = evaluate(state.trial)
        finite = torch.isfinite(loss) & torch.isfinite(gradient.abs().amax(1))
        spent[active] += 1
        run_spent[active] += 1
        better = finite & (loss < best[active])
        best_x[active[better]], best[active[better]] = state.trial[better], loss[better]
        runs[active[better]] = restarts[active[better]]
        run_best[active] = torch.where(finite, torch.minimum(run_best[active], loss), run_best[active])
        record.note(active, spent[active], best, best_x)

        seen = units[active] * loss
        state = solver.step(state, seen, units[active, None] * gradient)
        out_of_budget = spent[active] >= plan.evaluations
        ended = ~finite | state.finished
        if plan.stop_loss is not None:
            ended = ended | ((seen < plan.stop_loss) & (spent[active] % plan.look_every == 0))
        left = restarts[active] < plan.restarts
        ended = ended | (left & (run_spent[active] >= share[active]) & (run_best[active] > hopeless[active]))
        again = ended & ~out_of_budget & left & (run_best[active] > enough[active])
        if plan.leave_stalled:
            again = again & (~state.finished | ~finite | (run_best[active] >= scale[active]))
        done = (ended & ~again) | out_of_budget
        if not (again.any() or done.any()):
            continue
        restarts[active[again]] += 1
        slots = torch.nonzero(done)[:, 0]
        refilled = slots[: count - waiting]
        record.close(active[done], best, best_x)
        active[refilled] = torch.arange(waiting, waiting + len(refilled), device=device)
        waiting += len(refilled)
        fresh = again.clone()
        fresh[refilled] = True
        if fresh.any():
            positions = active[fresh]
            starts = torch.stack([problem.start(int(rows[p]), int(restarts[p])) for p in positions])
            state = merge(state, solver.init(starts), fresh)
            run_best[positions], run_spent[positions] = torch.inf, 0
            opened = active[refilled]
            best_x[opened] = starts[torch.isin(positions, opened)]
        gone = slots[len(refilled) :]
        if len(gone):
            keep = torch.ones_like(done)
            keep[gone] = False
            active, state = active[keep], select(state, torch.nonzero(keep)[:, 0])
        if len(active):
            evaluate = problem.narrowed(rows[active], restarts[active])
    marks, kept = record.until(int(spent.max()) if count else 0)
    return Solution(
        x=best_x, loss=best, evaluations=spent, restarts=restarts, runs=runs,
        marks=marks, losses=record.losses[kept], trajectory=record.trajectory[kept],
    )  # fmt: skip


class _Record:
    """Least losses, and the first rows' points, at powers of two and at the end."""

    def __init__(self, evaluations: int, x: Tensor) -> None:
        powers = [1 << n for n in range(evaluations.bit_length()) if 1 << n < evaluations]
        self.marks = (*powers, evaluations)
        shown = min(TRAJECTORIES, len(x))
        self.losses = torch.full((len(self.marks), len(x)), torch.inf, dtype=x.dtype, device=x.device)
        self.trajectory = x.new_zeros((len(self.marks), shown, x.shape[1]))
        self._next = torch.zeros(len(x), dtype=torch.long, device=x.device)  # per row, the mark to fill
        self._at = torch.tensor(self.marks, device=x.device)

    def note(self, active: Tensor, spent: Tensor, best: Tensor, x: Tensor) -> None:
        """Fill the marks that rows have just reached."""
        reached = spent >= self._at[self._next[active].clamp_max(len(self.marks) - 1)]
        if not reached.any():
            return
        for row in active[reached].tolist():
            self._fill(row, int(self._next[row]), best, x)
            self._next[row] += 1

    def close(self, rows: Tensor, best: Tensor, x: Tensor) -> None:
        """A row that ends before the last mark stays where it is."""
        for row in rows.tolist():
            for mark in range(int(self._next[row]), len(self.marks)):
                self._fill(row, mark, best, x)
            self._next[row] = len(self.marks)

    def until(self, last: int) -> tuple[tuple[int, ...], list[int]]:
        """The marks up to the last evaluation of any row, which is the last mark; and their positions."""
        before = [n for n, mark in enumerate(self.marks) if mark < last]
        return (*(self.marks[n] for n in before), last), [*before, len(self.marks) - 1]

    def _fill(self, row: int, mark: int, best: Tensor, x: Tensor) -> None:
        if mark < len(self.marks):
            self.losses[mark, row] = best[row]
            if row < self.trajectory.shape[1]:
                self.trajectory[mark, row] = x[row]


def continued(first: Solution, more: Solution, rows: Tensor) -> Solution:
    """`first` with what `more` made of the positions `rows`, where that is better.

    `more` began with the evaluations of `first` as spent, so that its counts are the totals.
    """
    x, loss, evaluations = first.x.clone(), first.loss.clone(), first.evaluations.clone()
    better = more.loss.to(loss) < loss[rows]
    x[rows[better]], loss[rows[better]] = more.x[better].to(x), more.loss[better].to(loss)
    evaluations[rows] = more.evaluations
    losses, trajectory = first.losses.clone(), first.trajectory.clone()
    losses[-1] = loss
    trajectory[-1] = x[: trajectory.shape[1]]
    return replace(first, x=x, loss=loss, evaluations=evaluations, losses=losses, trajectory=trajectory)
