"""Loop for solvers: evaluate active rows, keep their best points, restart or replace finished rows."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.attacks.solvers.base import Evaluate, Problem, RowLimits, Solution, Solver, State, merge, put, select
from bench.attacks.solvers.graph import replayed
from bench.attacks.solvers.trajectory import Trajectory
from bench.trip import TRACED

# A rate of convergence is the change of inputs over that of the check before. Single rates scatter, so a rate counts as
# at least the share (first) of the rate before; above the second, slower parts of the error may not show yet.
_RATE_FALLS, _SLOW = 0.9, 0.8


@dataclass(slots=True, kw_only=True)
class _Progress:
    """State of the loop. A position is an index into `rows`, all rows to minimise; a slot is an index into the rows
    now in work. Counts are on the host, so a GPU is waited for only once per evaluation. Losses, points and
    solver state are on the problem's device."""

    problem: Problem
    solver: Solver[Any]
    limits: RowLimits
    rows: Tensor  # (position,), row numbers in the problem; host
    evaluations: Tensor  # (position,); host
    restarts: Tensor  # (position,); host
    run_evaluations: Tensor  # (position,), of the present run; host
    per_run: Tensor  # (position,), evaluations after which a run may be abandoned; host
    slots: Tensor  # (slot,), active positions; host
    restart: Tensor  # (slot,), ended, to be restarted; host
    done: Tensor  # (slot,), ended, to be replaced or dropped; host
    waiting: int  # first position not yet begun
    zero_loss: Tensor  # (position,); this and the following fields are on the device
    loss_scale: Tensor
    abandon_above: Tensor
    keep_below: Tensor
    runs: Tensor
    loss: Tensor
    run_loss: Tensor  # (position,), least loss of the present run
    earlier_loss: Tensor  # (position,), `run_loss` at the last check for flatness
    earlier_inputs: Tensor | None  # (position, value), at the last check for precision; None before
    earlier_move: Tensor  # (position,), change of inputs before this check
    earlier_rate: Tensor  # (position,), factor from one such change to the next
    x: Tensor
    trajectory: Trajectory
    active: Tensor  # `slots` on the device
    live: Tensor | None  # (slot,), not ended; on the device; None: all
    state: State
    evaluate: Evaluate


def minimise(
    problem: Problem,
    solver: Solver[Any],
    limits: RowLimits,
    rows: Tensor,
    *,
    chunk: int | None = None,
    spent: Tensor | None = None,
    traced: int = TRACED,
) -> Solution:
    """Minimise the objective of `problem` for many rows (minimisations), each independently of the others.

    - `solver`: descent method; `limits`: rules for restarting and finishing a row.
    - `rows` (row,): row numbers in the problem, on the host (CPU).
    - `chunk`: number of rows in work at once; a finished row makes room for the next. None takes all rows.
    - `spent` (row,): evaluations that each row has already used, on the host; None for 0.
    - `traced`: number of rows, from the first, whose trajectory (best points over time) is kept."""
    now = _begin(problem, solver, limits, rows, min(len(rows), chunk or len(rows)), spent, traced)
    while len(now.slots):
        loss, finite = _advance(now)
        restart, done = _judge(now, loss, finite)
        if (restart | done).any():
            _end(now, restart.cpu(), done.cpu())
    marks, positions = now.trajectory.until(int(now.evaluations.max()))
    return Solution(
        x=now.x,
        loss=now.loss,
        evaluations=now.evaluations,
        restarts=now.restarts,
        runs=now.runs.cpu(),
        marks=marks,
        losses=now.trajectory.losses[positions],
        trajectory=now.trajectory.points[positions],
    )


def _begin(
    problem: Problem,
    solver: Solver[Any],
    limits: RowLimits,
    rows: Tensor,
    chunk: int,
    spent: Tensor | None,
    traced: int,
) -> _Progress:
    zero_loss, floor = problem.zero_gradient_loss(rows), 2 * problem.noise_floor(rows)
    none, slots = torch.zeros(len(rows), dtype=torch.long), torch.arange(chunk)
    spent = none.clone() if spent is None else spent.clone()
    starts = _starts(problem, rows[slots], none[slots])
    loss = starts.new_full((len(rows),), torch.inf)
    x = starts.new_zeros((len(rows), starts.shape[1]))
    x[:chunk] = starts
    return _Progress(
        problem=problem,
        solver=solver,
        limits=limits,
        rows=rows,
        evaluations=spent,
        restarts=none.clone(),
        run_evaluations=none,
        slots=slots,
        restart=torch.zeros(chunk, dtype=torch.bool),
        done=torch.zeros(chunk, dtype=torch.bool),
        waiting=chunk,
        per_run=torch.div(limits.evaluations - spent, limits.restarts + 1, rounding_mode="floor"),
        zero_loss=zero_loss,
        loss_scale=problem.loss_scale(rows),
        abandon_above=torch.maximum(limits.abandon_above * zero_loss, floor),
        keep_below=torch.maximum(limits.keep_below * zero_loss, floor),
        runs=none.to(x.device, copy=True),
        loss=loss,
        run_loss=loss.clone(),
        earlier_loss=loss.clone(),
        earlier_inputs=None,
        earlier_move=torch.zeros_like(loss),
        earlier_rate=torch.ones_like(loss),
        x=x,
        trajectory=Trajectory(limits.evaluations, x, traced),
        active=slots.to(x.device),
        live=None,
        state=solver.init(starts),
        evaluate=replayed(problem.subset(rows[slots], none[slots]), x.device),
    )


def _starts(problem: Problem, rows: Tensor, restarts: Tensor) -> Tensor:
    return torch.stack([problem.start(*pair) for pair in zip(rows.tolist(), restarts.tolist(), strict=True)])


def _advance(now: _Progress) -> tuple[Tensor, Tensor]:
    """Evaluate each slot's trial point, keep better points, and let the solver choose the next trials. Return the
    trials' losses times `loss_scale` (slot,), and a mask (slot,) with True for a finite loss and gradient."""
    active, trial = now.active, now.state.trial
    loss, gradient = now.evaluate(trial)
    finite = torch.isfinite(loss) & torch.isfinite(gradient.abs().amax(1))
    counted = now.slots if now.live is None else now.slots[~(now.restart | now.done)]
    now.evaluations[counted] += 1
    now.run_evaluations[counted] += 1
    better = finite & (loss < now.loss[active])
    if now.live is not None:
        better = better & now.live
    put(now.x, active, better, trial)
    put(now.loss, active, better, loss)
    if now.limits.restarts:
        put(now.runs, active, better, now.restarts[now.slots].to(active.device))
    now.run_loss[active] = torch.where(finite, torch.minimum(now.run_loss[active], loss), now.run_loss[active])
    now.trajectory.note(counted, now.evaluations[counted], now.loss, now.x)
    scale = now.loss_scale[active]
    normalised = scale * loss
    now.state = now.solver.step(now.state, normalised, scale[:, None] * gradient)
    return normalised, finite


def _judge(now: _Progress, loss: Tensor, finite: Tensor) -> tuple[Tensor, Tensor]:
    """Return the slots to restart and the slots done, by `RowLimits`: two disjoint masks (slot,). `loss` and the mask
    `finite` are results of `_advance`."""
    limits, active, slots, converged = now.limits, now.active, now.slots, now.state.finished
    run_loss, spent, run = now.run_loss[active], now.evaluations[slots], now.run_evaluations[slots]
    exhausted, allowed = spent >= limits.evaluations, now.restarts[slots] < limits.restarts
    ended = ~finite | converged
    if limits.stop_loss is not None:
        ended = ended | _where(spent % limits.look_every == 0, loss < limits.stop_loss)
    explained = run_loss <= limits.explained * now.zero_loss[active]
    if limits.flat_after is not None and (due := run % limits.flat_after == 0).any():
        flat = _where(due, run_loss > (1 - limits.least_fall) * now.earlier_loss[active])
        ended = ended | (flat & explained)
        put(now.earlier_loss, active, due.to(active.device), run_loss)
    if limits.precision is not None and (due := run % limits.precise_after == 0).any():
        ended = ended | _where(due, explained & _precise(now, due.to(active.device), limits.precision))
    if (late := allowed & (run >= now.per_run[slots])).any():
        ended = ended | _where(late, run_loss > now.abandon_above[active])
    restart = _where(allowed & ~exhausted, ended & (run_loss > now.keep_below[active]))
    if limits.leave_stalled:
        restart = restart & (~converged | ~finite | (run_loss >= limits.stalled * now.zero_loss[active]))
    done = ended & ~restart
    if exhausted.any():
        done = done | exhausted.to(active.device)
    return (restart, done) if now.live is None else (restart & now.live, done & now.live)


def _precise(now: _Progress, due: Tensor, precision: float) -> Tensor:
    """Return a mask (slot,): the estimated error of inputs is below `precision`. Slots outside `due` are false."""
    active = now.active
    inputs = now.problem.in_range(now.x[active])
    if now.earlier_inputs is None:
        now.earlier_inputs = inputs.new_zeros((len(now.rows), inputs.shape[1]))
    moved = (inputs - now.earlier_inputs[active]).square().mean(1).sqrt()
    earlier = now.earlier_move[active]
    newest = torch.where(earlier > 0, moved / earlier, 1.0)
    rate = torch.maximum(newest, _RATE_FALLS * now.earlier_rate[active])
    put(now.earlier_inputs, active, due, inputs)
    put(now.earlier_move, active, due, moved)
    put(now.earlier_rate, active, due, rate)
    return (rate < _SLOW) & (moved * rate < precision * (1 - rate))


def _where(known: Tensor, mask: Tensor) -> Tensor:
    return mask if known.all() else mask & known.to(mask.device)


def _end(now: _Progress, restart: Tensor, done: Tensor) -> None:
    """End the runs of the slots in the masks `restart` and `done`, both on the host.

    On a GPU, ended slots stay, unused, until they are a share of all slots: other slots would need another graph of
    kernels."""
    now.restart, now.done = now.restart | restart, now.done | done
    ended = now.restart | now.done
    if int(ended.sum()) <= _share_of_ended(now.active.device) * len(ended):
        now.live = ~ended.to(now.active.device)
        return
    _refill(now)


def _share_of_ended(device: torch.device) -> float:
    return 0.0 if device.type == "cpu" else 0.25


def _refill(now: _Progress) -> None:
    """Restart the slots that wait for it, give the slots that are done to waiting rows, and drop empty slots."""
    restart, done = now.restart, now.done
    now.restarts[now.slots[restart]] += 1
    now.trajectory.close(now.slots[done], now.loss, now.x)
    refilled = torch.nonzero(done)[: len(now.rows) - now.waiting, 0]
    now.slots[refilled] = torch.arange(len(refilled)) + now.waiting
    now.waiting += len(refilled)
    fresh = restart.clone()
    fresh[refilled] = True
    device = now.active.device
    if fresh.any():
        positions = now.slots[fresh]
        starts = _starts(now.problem, now.rows[positions], now.restarts[positions])
        now.state = merge(now.state, now.solver.init(starts), fresh)
        now.run_evaluations[positions] = 0
        begun = positions.to(device)
        now.run_loss[begun], now.earlier_loss[begun] = torch.inf, torch.inf
        now.earlier_move[begun], now.earlier_rate[begun] = 0, 1
        now.x[now.slots[refilled].to(device)] = starts[done[fresh].to(device)]
    kept = fresh | ~done
    if not kept.all():
        now.slots, now.state = now.slots[kept], select(now.state, torch.nonzero(kept)[:, 0])
    now.active, now.live = now.slots.to(device), None
    now.restart, now.done = (torch.zeros(len(now.slots), dtype=torch.bool) for _ in range(2))
    if len(now.slots):
        now.evaluate = replayed(now.problem.subset(now.rows[now.slots], now.restarts[now.slots]), device)
