"""Continue rows in double precision if single precision stopped them before their budget was spent."""

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bench.attacks.search.problem import MatchingProblem
from bench.attacks.solvers.base import RowLimits, Solution, Solver
from bench.attacks.solvers.loop import minimise
from bench.trip import Reading


def refine(
    problem: MatchingProblem, solver: Solver[Any], limits: RowLimits, solution: Solution, chunk: int
) -> Solution:
    """Continue the minimisation of unfinished rows (one for each observed update) in float64, without restarts; return
    the improved solution. A row is unfinished if evaluations remain and its normalised loss is finite and above
    `limits.stop_loss`.

    - `problem`, `solver`, `limits`: arguments of the minimisation in single precision; `solution` is its result.
    - `chunk`: number of rows in work at once."""
    loss = problem.loss_scale(torch.arange(len(solution.loss))) * solution.loss
    unfinished = ((loss > (limits.stop_loss or 0.0)) & torch.isfinite(loss)).cpu()
    rows = torch.nonzero((solution.evaluations < limits.evaluations) & unfinished)[:, 0]
    if not len(rows) or problem.like.dtype == torch.float64:
        return solution
    double = replace(
        problem,
        mismatch=replace(problem.mismatch, reading=in_double(problem.reading)),
        observed=[{name: value.double() for name, value in target.items()} for target in problem.observed],
        labels=problem.ordered_labels(torch.arange(len(solution.runs)), solution.runs),
        shuffled=False,
        initial=solution.x.double(),
    )
    limits = replace(limits, restarts=0, leave_stalled=False)
    more = minimise(double, solver, limits, rows, chunk=chunk, spent=solution.evaluations[rows])
    return _merged(solution, more, rows)


def in_double(reading: Reading) -> Reading:
    """Return the batch `reading` with its updates, weights and a copy of its model in double precision, to continue a
    search beyond single precision."""
    return replace(
        reading,
        model=copy.deepcopy(reading.model).double(),
        values={name: value.double() for name, value in reading.values.items()},
        weights={name: value.double() for name, value in reading.weights.items()},
    )


def _merged(first: Solution, more: Solution, rows: Tensor) -> Solution:
    """Return `first`, a solution for all readings, improved by `more`, a solution for the readings at the positions
    `rows`. A reading takes its point and loss from `more` if its loss is lower there, and its evaluation count from
    `more` in any case: this count includes the evaluations in `first`."""
    x, loss, evaluations = first.x.clone(), first.loss.clone(), first.evaluations.clone()
    at = rows.to(loss.device)
    better = more.loss.to(loss) < loss[at]
    x[at[better]], loss[at[better]] = more.x[better].to(x), more.loss[better].to(loss)
    evaluations[rows] = more.evaluations
    losses, trajectory = first.losses.clone(), first.trajectory.clone()
    losses[-1], trajectory[-1] = loss, x[: trajectory.shape[1]]
    return replace(first, x=x, loss=loss, evaluations=evaluations, losses=losses, trajectory=trajectory)
