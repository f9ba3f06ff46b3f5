"""The one loop: evaluate every row's trial, keep each row's best, restart or drop what has ended."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from bench.attacks.solvers.base import Solver, merge, select


class Problem(Protocol):
    """Rows to minimise over, in parallel."""

    def start(self, row: int, restart: int) -> Tensor:
        """Where a row begins on that restart: (variable,)."""

    def narrowed(self, rows: Tensor) -> "Evaluate":
        """The objective of some rows alone."""

    def scale(self, rows: Tensor) -> Tensor:
        """The loss (row,) of a candidate that explains nothing: losses are judged against it."""


class Evaluate(Protocol):
    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(row, variable) → loss (row,) and gradient (row, variable)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long a row may go on.

    `evaluations` and `restarts` per row, restarts inside the budget.  A run ends when its solver
    says so, when it is no number, when its loss falls below `stop_loss` (looked at every
    `look_every` evaluations), or, while restarts are left, when its fair share of the budget is
    spent and its loss is still above `hopeless`·scale.  A run that ends above `enough`·scale is
    restarted while there is budget.
    """

    evaluations: int
    restarts: int = 0
    stop_loss: float | None = None
    look_every: int = 1
    hopeless: float = 1e-2
    enough: float = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Per row: the point of least loss over all runs, that loss, evaluations, restarts used, and
    `history`: (evaluation, least loss so far (row,)) at powers of two."""

    x: Tensor
    loss: Tensor
    evaluations: Tensor
    restarts: Tensor
    history: tuple[tuple[int, Tensor], ...]


def minimise(problem: Problem, solver: Solver[Any], plan: Plan, rows: Tensor) -> Solution:
    """Minimise the given rows of `problem` side by side; every row as if it were alone."""
    x = torch.stack([problem.start(int(row), 0) for row in rows])
    best_x, best = x.clone(), torch.full((len(rows),), torch.inf, dtype=x.dtype, device=x.device)
    spent = torch.zeros(len(rows), dtype=torch.long, device=x.device)
    restarts = spent.clone()
    scale = problem.scale(rows)
    history: list[tuple[int, Tensor]] = []

    active = torch.arange(len(rows), device=x.device)  # positions in `rows`
    state = solver.init(x)
    evaluate = problem.narrowed(rows)
    run_best, run_spent = best.clone(), spent.clone()
    calls = 0
    while len(active):
        loss, gradient = evaluate(state.trial)
        calls += 1
        finite = torch.isfinite(loss) & torch.isfinite(gradient).all(1)
        spent[active] += 1
        run_spent[active] += 1
        better = finite & (loss < best[active])
        best_x[active[better]], best[active[better]] = state.trial[better], loss[better]
        run_best[active] = torch.where(finite, torch.minimum(run_best[active], loss), run_best[active])
        if calls & (calls - 1) == 0:
            history.append((calls, best.clone()))

        state = solver.step(state, loss, gradient)
        relative = run_best[active] / scale[active]
        out_of_budget = spent[active] >= plan.evaluations
        ended = ~finite | state.finished
        if plan.stop_loss is not None:
            ended = ended | ((loss < plan.stop_loss) & (spent[active] % plan.look_every == 0))
        left = restarts[active] < plan.restarts
        share = plan.evaluations // (plan.restarts + 1)
        ended = ended | (left & (run_spent[active] >= share) & (relative > plan.hopeless))
        again = ended & ~out_of_budget & left & (relative > plan.enough)
        if again.any():
            positions = active[again]
            restarts[positions] += 1
            fresh = torch.stack([problem.start(int(rows[p]), int(restarts[p])) for p in positions])
            state = merge(state, solver.init(fresh), again)
            run_best[positions], run_spent[positions] = torch.inf, 0
        done = (ended & ~again) | out_of_budget
        if done.any():
            keep = torch.nonzero(~done)[:, 0]
            active, state = active[keep], select(state, keep)
            if len(active):
                evaluate = problem.narrowed(rows[active])
    if not history or history[-1][0] != calls:
        history.append((calls, best.clone()))
    return Solution(x=best_x, loss=best, evaluations=spent, restarts=restarts, history=tuple(history))
