"""The loop of the solvers: evaluate every active row, keep its best point, restart or replace what has ended."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.attacks.solvers.base import Evaluate, Problem, RowLimits, Solution, Solver, State, merge, select
from bench.attacks.solvers.trajectory import Trajectory


@dataclass(slots=True, kw_only=True)
class _Progress:
    """The state of the loop.  A position numbers a row of `rows`; a slot, a row that is active now.

    `zero_loss`, `loss_scale`, `abandon_above`, `keep_below` (position,): see `Problem` and `RowLimits`; `per_run`
    (position,) are the evaluations after which a run that explains little is abandoned.  `evaluations`, `restarts`,
    `runs`, `loss`, `x`: see `Solution`; `run_evaluations`, `run_loss` (position,) are of the present run;
    `earlier_loss` is its least loss `flat_after` evaluations ago.  `active` (slot,) are positions, `waiting` is the
    first position not yet begun; `state` and `evaluate` are of the slots.
    """

    problem: Problem
    solver: Solver[Any]
    limits: RowLimits
    rows: Tensor
    zero_loss: Tensor
    loss_scale: Tensor
    abandon_above: Tensor
    keep_below: Tensor
    per_run: Tensor
    evaluations: Tensor
    run_evaluations: Tensor
    restarts: Tensor
    runs: Tensor
    loss: Tensor
    run_loss: Tensor
    earlier_loss: Tensor
    x: Tensor
    trajectory: Trajectory
    active: Tensor
    waiting: int
    state: State
    evaluate: Evaluate


def minimise(
    problem: Problem, solver: Solver[Any], limits: RowLimits, rows: Tensor, *, chunk: int | None = None,
    spent: Tensor | None = None,
) -> Solution:  # fmt: skip
    """Minimise some rows of `problem`, `chunk` of them side by side, each as if it were alone.

    A row that has ended makes room for the next.  `spent` (row,): evaluations that rows have used before.
    """
    now = _begin(problem, solver, limits, rows, min(len(rows), chunk or len(rows)), spent)
    while len(now.active):
        loss, finite = _advance(now)
        restart, done = _judge(now, loss, finite)
        if restart.any() or done.any():
            _refill(now, restart, done)
    marks, positions = now.trajectory.until(int(now.evaluations.max()))
    return Solution(
        x=now.x, loss=now.loss, evaluations=now.evaluations, restarts=now.restarts, runs=now.runs,
        marks=marks, losses=now.trajectory.losses[positions], trajectory=now.trajectory.points[positions],
    )  # fmt: skip


def _begin(
    problem: Problem, solver: Solver[Any], limits: RowLimits, rows: Tensor, chunk: int, spent: Tensor | None
) -> _Progress:
    zero_loss, floor = problem.zero_gradient_loss(rows), 2 * problem.noise_floor(rows)
    device, loss_scale = zero_loss.device, problem.loss_scale(rows)
    rows = rows.to(device)
    none = torch.zeros(len(rows), dtype=torch.long, device=device)
    spent = none.clone() if spent is None else spent.to(device, copy=True)
    active = torch.arange(chunk, device=device)
    starts = _starts(problem, rows[active], none[active])
    loss = torch.full((len(rows),), torch.inf, dtype=starts.dtype, device=device)
    x = torch.zeros((len(rows), starts.shape[1]), dtype=starts.dtype, device=device)
    x[active] = starts
    return _Progress(
        problem=problem, solver=solver, limits=limits, rows=rows, zero_loss=zero_loss, loss_scale=loss_scale,
        abandon_above=torch.maximum(limits.abandon_above * zero_loss, floor),
        keep_below=torch.maximum(limits.keep_below * zero_loss, floor),
        per_run=torch.div(limits.evaluations - spent, limits.restarts + 1, rounding_mode="floor"),
        evaluations=spent, run_evaluations=none, restarts=none.clone(), runs=none.clone(),
        loss=loss, run_loss=loss.clone(), earlier_loss=loss.clone(), x=x, trajectory=Trajectory(limits.evaluations, x),
        active=active, waiting=chunk, state=solver.init(starts),
        evaluate=problem.subset(rows[active], none[active]),
    )  # fmt: skip


def _starts(problem: Problem, rows: Tensor, restarts: Tensor) -> Tensor:
    return torch.stack([problem.start(*pair) for pair in zip(rows.tolist(), restarts.tolist(), strict=True)])


def _advance(now: _Progress) -> tuple[Tensor, Tensor]:
    """Evaluate each slot's trial, keep what is better, and let the solver choose the next trial; returns the
    normalised losses (slot,) and whether loss and gradient were finite (slot,)."""
    active, trial = now.active, now.state.trial
    loss, gradient = now.evaluate(trial)
    finite = torch.isfinite(loss) & torch.isfinite(gradient.abs().amax(1))
    now.evaluations[active] += 1
    now.run_evaluations[active] += 1
    better = finite & (loss < now.loss[active])
    improved = active[better]
    now.x[improved], now.loss[improved] = trial[better], loss[better]
    now.runs[improved] = now.restarts[improved]
    now.run_loss[active] = torch.where(
        finite, torch.minimum(now.run_loss[active], loss), now.run_loss[active]
    )
    now.trajectory.note(active, now.evaluations[active], now.loss, now.x)
    normalised = now.loss_scale[active] * loss
    now.state = now.solver.step(now.state, normalised, now.loss_scale[active, None] * gradient)
    return normalised, finite


def _judge(now: _Progress, loss: Tensor, finite: Tensor) -> tuple[Tensor, Tensor]:
    """Which slots restart, and which rows are done, by the rules of `RowLimits`; two masks (slot,) without overlap."""
    limits, active, converged = now.limits, now.active, now.state.finished
    run_loss = now.run_loss[active]
    exhausted = now.evaluations[active] >= limits.evaluations
    ended = ~finite | converged
    if limits.stop_loss is not None:
        ended = ended | ((loss < limits.stop_loss) & (now.evaluations[active] % limits.look_every == 0))
    if limits.flat_after is not None:
        due = now.run_evaluations[active] % limits.flat_after == 0
        flat = due & (run_loss > (1 - limits.least_fall) * now.earlier_loss[active])
        ended = ended | (flat & (run_loss <= limits.explained * now.zero_loss[active]))
        now.earlier_loss[active[due]] = run_loss[due]
    allowed = now.restarts[active] < limits.restarts
    late = now.run_evaluations[active] >= now.per_run[active]
    ended = ended | (allowed & late & (run_loss > now.abandon_above[active]))
    restart = ended & ~exhausted & allowed & (run_loss > now.keep_below[active])
    if limits.leave_stalled:
        restart = restart & (~converged | ~finite | (run_loss >= limits.stalled * now.zero_loss[active]))
    return restart, (ended & ~restart) | exhausted


def _refill(now: _Progress, restart: Tensor, done: Tensor) -> None:
    """Restart slots, give those of done rows to rows that wait, and drop the slots that remain empty."""
    now.restarts[now.active[restart]] += 1
    now.trajectory.close(now.active[done], now.loss, now.x)
    refilled = torch.nonzero(done)[: len(now.rows) - now.waiting, 0]
    now.active[refilled] = torch.arange(len(refilled), device=refilled.device) + now.waiting
    now.waiting += len(refilled)
    fresh = restart.clone()
    fresh[refilled] = True
    if fresh.any():
        positions = now.active[fresh]
        starts = _starts(now.problem, now.rows[positions], now.restarts[positions])
        now.state = merge(now.state, now.solver.init(starts), fresh)
        now.run_loss[positions], now.run_evaluations[positions] = torch.inf, 0
        now.earlier_loss[positions] = torch.inf
        now.x[now.active[refilled]] = starts[done[fresh]]
    kept = fresh | ~done
    if not kept.all():
        now.active, now.state = now.active[kept], select(now.state, torch.nonzero(kept)[:, 0])
    if len(now.active):
        now.evaluate = now.problem.subset(now.rows[now.active], now.restarts[now.active])
