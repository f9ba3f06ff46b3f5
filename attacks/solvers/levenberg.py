"""Levenberg–Marquardt from several starts of a least-squares problem (Levenberg 1944; Marquardt 1963).

`least_squares` is no `Solver`: it takes residuals and their Jacobian instead of a loss and its gradient."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_ACCEPTED, _REJECTED = 0.2, 4.0  # factors of the damping after a step
_DAMPING = (1e-12, 1e8)
_TINY = 1e-12

# variables (start, variable) → (start, residual), or its derivatives (start, residual, variable)
Residuals = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Result of `least_squares`, with an entry per start."""

    x: Tensor
    """Variables with the least sum of squared residuals (start, variable)."""
    loss: Tensor
    """Least sum of squared residuals (start,)."""
    evaluations: Tensor
    """Evaluations used (start,)."""


def least_squares(residuals: Residuals, jacobian: Residuals, x: Tensor, *, evaluations: int, stop: float) -> Fit:
    """Minimise the sum of squared residuals from each start in `x` (start, variable), by Levenberg–Marquardt.

    - `residuals`, `jacobian`: functions of points (point, variable) and the numbers of their starts (point,).
      `residuals` returns (point, residual), `jacobian` the derivatives (point, residual, variable). Each call counts as
      an evaluation for these starts.
    - `evaluations`: limit per start.
    - `stop`: the minimisation ends when the least sum over all starts is at most this value."""
    everyone = torch.arange(len(x))
    f = residuals(x, everyone)
    loss = f.square().sum(1).nan_to_num(torch.inf)
    used = torch.ones(len(x), dtype=torch.long)
    damping = torch.full_like(loss, 1e-2)
    slopes = f.new_zeros(*f.shape, x.shape[1])
    stale = torch.ones(len(x), dtype=torch.bool)
    while float(loss.min()) > stop:
        rows = torch.isfinite(loss) & (damping < _DAMPING[1]) & (used + 1 + stale.long() <= evaluations)
        fresh, at = everyone[rows & stale], everyone[rows]
        if not len(at):
            break
        if len(fresh):
            slopes[fresh] = jacobian(x[fresh], fresh)
            used[fresh] += 1
        normal = slopes[at].mT @ slopes[at]
        scale = damping[at, None] * normal.diagonal(dim1=1, dim2=2).clamp_min(_TINY)
        step, _ = torch.linalg.solve_ex(normal + scale.diag_embed(), slopes[at].mT @ f[at, :, None])
        trial = x[at] - step[..., 0].nan_to_num()
        there = residuals(trial, at)
        least = there.square().sum(1).nan_to_num(torch.inf)
        used[at] += 1
        better = least < loss[at]
        damping[at] = (damping[at] * torch.where(better, _ACCEPTED, _REJECTED)).clamp(*_DAMPING)
        moved = at[better]
        x, f = x.index_copy(0, moved, trial[better]), f.index_copy(0, moved, there[better])
        loss, stale = loss.index_copy(0, moved, least[better]), torch.zeros_like(stale)
        stale[moved] = True
    return Fit(x=x, loss=loss, evaluations=used)
