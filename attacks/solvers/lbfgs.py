"""L-BFGS with a step size, history and stop of its own for every row (Nocedal 1980).

`search = "none"` takes the full step always, as the published attack loops do with
`torch.optim.LBFGS`; `"backtracking"` shrinks a row's step until the sufficient-decrease test
holds.  Rows are asynchronous: each evaluation serves every row's own trial point.  The direction
comes from the compact form (Byrd, Nocedal & Schnabel 1994, theorem 2.2), which reads the history
twice a step; its small systems are solved in float64.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bench.attacks.solvers.base import Solver, State

_CURVATURE = 1e-10  # torch.optim.LBFGS: a pair enters the history when y·s is above this
_ARMIJO = 1e-4
_SHRINKS = 15  # trials along one direction before a row falls back to steepest descent


@dataclass
class LbfgsState(State):
    """Per row: the accepted point, its loss, gradient, direction d, step t, and the history."""

    x: Tensor
    loss: Tensor  # +inf before the first evaluation
    gradient: Tensor
    d: Tensor
    t: Tensor
    slope: Tensor  # g·d
    shrinks: Tensor
    scale: Tensor  # γ, the initial inverse Hessian
    s: Tensor  # (row, slot, variable)
    y: Tensor
    sy: Tensor  # (row, slot, slot): s_i·y_j, float64
    yy: Tensor
    stamps: Tensor  # (row, slot): when the slot was written, -1 where empty
    pushes: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Lbfgs(Solver[LbfgsState]):
    """`rate`, `history`, tolerances and `inner` (evaluations in one published outer step) as in
    `torch.optim.LBFGS`."""

    rate: float = 1.0
    history: int = 100
    search: Literal["none", "backtracking"] = "none"
    tolerance_gradient: float = 1e-7
    tolerance_change: float = 1e-9
    inner: int = 20

    def init(self, x: Tensor) -> LbfgsState:
        rows, n = x.shape
        device = x.device

        def full(value: float, *shape: int, dtype: torch.dtype = x.dtype) -> Tensor:
            return torch.full((rows, *shape), value, dtype=dtype, device=device)

        m, whole = self.history, torch.long
        return LbfgsState(
            trial=x.clone(), finished=full(0, dtype=torch.bool), x=x.clone(), loss=full(torch.inf),
            gradient=full(0, n), d=full(0, n), t=full(0), slope=full(0), shrinks=full(0, dtype=whole),
            scale=full(1), s=full(0, m, n), y=full(0, m, n), sy=full(0, m, m, dtype=torch.float64),
            yy=full(0, m, m, dtype=torch.float64), stamps=full(-1, m, dtype=whole),
            pushes=full(0, dtype=whole),
        )  # fmt: skip

    def step(self, state: LbfgsState, loss: Tensor, gradient: Tensor) -> LbfgsState:
        first = torch.isinf(state.loss)
        accepted = first | self._accepts(state, loss)
        moved = accepted & ~first

        s = torch.where(moved[:, None], state.trial - state.x, 0)
        y = torch.where(moved[:, None], gradient - state.gradient, 0)
        x = torch.where(accepted[:, None], state.trial, state.x)
        g = torch.where(accepted[:, None], gradient, state.gradient)
        ys = (y * s).sum(1)
        push = moved & (ys > _CURVATURE)
        d, scale = self._direction(state, s, y, g, ys, push)

        # where rows shrink their step: after too many trials, steepest descent with no history
        shrinks = torch.where(accepted, 0, state.shrinks + 1)
        lost = shrinks == _SHRINKS
        stuck = shrinks > 2 * _SHRINKS
        if lost.any():
            state.stamps[lost], state.s[lost], state.y[lost] = -1, 0, 0
            state.sy[lost], state.yy[lost] = 0, 0
            scale = torch.where(lost, 1, scale)
        keep = ~accepted & ~lost
        d = torch.where(keep[:, None], state.d, torch.where(lost[:, None], -g, d))
        slope = torch.where(keep, state.slope, (g * d).sum(1))
        gentle = (self.rate / g.abs().sum(1).clamp_min(1e-30)).clamp_max(self.rate)
        t = torch.where(first | lost, gentle, torch.full_like(loss, self.rate))
        t = torch.where(keep, state.t * self._shrink(state, loss), t)

        change = torch.where(accepted, loss - state.loss, torch.inf).abs()
        still = moved & ((s.abs().amax(1) <= self.tolerance_change) | (change < self.tolerance_change))
        flat = accepted & ((g.abs().amax(1) <= self.tolerance_gradient) | (slope > -self.tolerance_change))
        finished = state.finished | flat | stuck | ~torch.isfinite(g).all(1)
        if self.search == "backtracking":
            finished = finished | still
        return LbfgsState(
            trial=x + t[:, None] * d, finished=finished, x=x,
            loss=torch.where(accepted, loss, state.loss), gradient=g, d=d, t=t, slope=slope,
            shrinks=shrinks, scale=scale, s=state.s, y=state.y, sy=state.sy, yy=state.yy,
            stamps=state.stamps, pushes=state.pushes + push.long(),
        )  # fmt: skip

    def outer(self, evaluations: Tensor) -> Tensor:
        return (evaluations + self.inner - 1) // self.inner

    def _accepts(self, state: LbfgsState, loss: Tensor) -> Tensor:
        if self.search == "none":
            return torch.ones_like(state.finished)
        return loss <= state.loss + _ARMIJO * state.t * state.slope

    def _shrink(self, state: LbfgsState, loss: Tensor) -> Tensor:
        """The minimiser of the parabola through f(0), f'(0), f(t), within [.1, .5] of the step."""
        rise = loss - state.loss - state.t * state.slope
        factor = -0.5 * state.t * state.slope / rise
        return torch.where(torch.isfinite(factor), factor, 0.1).clamp(0.1, 0.5)

    def _direction(
        self, state: LbfgsState, s: Tensor, y: Tensor, g: Tensor, ys: Tensor, push: Tensor
    ) -> tuple[Tensor, Tensor]:
        """d = -H g and γ, after the pair (s, y) has entered the history of the rows in `push`.

        Writes the history in place: the state that `step` was given is not used again.
        """
        rows = torch.nonzero(push)[:, 0]
        slot = state.pushes % self.history
        if len(rows):
            at = (rows, slot[rows])
            state.s[at], state.y[at], state.stamps[at] = s[rows], y[rows], state.pushes[rows]
        used = int((state.stamps.amax(1) + 1).clamp_max(self.history).max())
        if not used:
            return -g, state.scale
        s_all, y_all = state.s[:, :used], state.y[:, :used]
        columns = torch.stack([g, s, y], 2)
        with_s, with_y = (s_all @ columns).double(), (y_all @ columns).double()
        if len(rows):
            at_row, at_slot = rows, slot[rows]
            state.sy[at_row, at_slot, :used] = with_y[rows, :, 1]  # s_new·y_j
            state.sy[at_row, :used, at_slot] = with_s[rows, :, 2]  # s_i·y_new
            state.yy[at_row, at_slot, :used] = with_y[rows, :, 2]
            state.yy[at_row, :used, at_slot] = with_y[rows, :, 2]
        scale = torch.where(push, ys / (y * y).sum(1).clamp_min(1e-30), state.scale)
        gamma = scale.double()[:, None]

        # in order of age, oldest first; empty slots are zero rows with a unit diagonal
        order = state.stamps[:, :used].argsort(1)
        grid = order[:, :, None].expand(-1, -1, used)
        grid_t = order[:, None, :].expand(-1, used, -1)
        sy = state.sy[:, :used, :used].gather(1, grid).gather(2, grid_t)
        yy = state.yy[:, :used, :used].gather(1, grid).gather(2, grid_t)
        empty = (state.stamps[:, :used].gather(1, order) < 0).double()
        diagonal = sy.diagonal(dim1=1, dim2=2)
        r = sy.triu() + torch.diag_embed(empty)
        p = with_s[:, :, 0].gather(1, order)[:, :, None]
        q = with_y[:, :, 0].gather(1, order)
        u = torch.linalg.solve_triangular(r, p, upper=True)[:, :, 0]
        right = diagonal * u + gamma * (yy @ u[:, :, None])[:, :, 0] - gamma * q
        v = torch.linalg.solve_triangular(r.mT, right[:, :, None], upper=False)[:, :, 0]
        back = torch.empty_like(order).scatter_(
            1, order, torch.arange(used, device=order.device).expand_as(order)
        )
        along_s = v.gather(1, back).to(g.dtype)[:, None, :]
        along_y = (gamma * u).gather(1, back).to(g.dtype)[:, None, :]
        d = -(scale[:, None] * g + (along_s @ s_all)[:, 0] - (along_y @ y_all)[:, 0])
        return d, scale
