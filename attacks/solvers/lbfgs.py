"""L-BFGS (Nocedal 1980) with a separate step size, history and stop for every row.

`line_search = "none"` takes full steps, as the published attack loops with `torch.optim.LBFGS` do; `"backtracking"`
shrinks a row's step until the sufficient-decrease test holds. Rows do not wait for each other: in the same evaluation,
some rows try a full step and others a shrunk step. The direction comes from the compact form (Byrd, Nocedal & Schnabel
1994, theorem 2.2), which reads the history twice per step; its small systems are solved in float64."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bench.attacks.solvers.base import Solver, State, may_hold

_CURVATURE = 1e-10  # torch.optim.LBFGS: a pair enters the history when y·s is above this
_ARMIJO = 1e-4
_CACHE = 12 << 20  # bytes of history within a core's cache between its two readings
_SHRINKS = 15  # trials along a direction before steepest descent


@dataclass
class LbfgsState(State):
    """State of L-BFGS between steps, for many minimisations (rows) in parallel: the last accepted point with loss and
    gradient (`x`, `loss`, `gradient`), the search direction, and the stored pairs of steps and gradient changes."""

    x: Tensor
    """Accepted point (row, variable)."""
    loss: Tensor
    """Loss at `x` (row,); +inf before the first evaluation."""
    gradient: Tensor
    """Gradient at `x` (row, variable)."""
    d: Tensor
    """Search direction (row, variable)."""
    t: Tensor
    """Step size along the search direction `d` (row,)."""
    slope: Tensor
    """Derivative of the loss along the search direction, gradient·d (row,)."""
    shrinks: Tensor
    """Number of shrunk steps since the last accepted point (row,)."""
    scale: Tensor
    """γ (row,): the initial inverse Hessian is γ times identity."""
    s: Tensor
    """Stored steps, the changes of the accepted point (row, slot, variable). A slot holds a step; a row has
    `Lbfgs.history` slots."""
    y: Tensor
    """Gradient changes over the stored steps (row, slot, variable)."""
    sy: Tensor
    """Scalar products s_i·y_j of steps and gradient changes (row, slot, slot), in float64."""
    yy: Tensor
    """Scalar products y_i·y_j of gradient changes (row, slot, slot), in float64."""
    filled: Tensor
    """Mask of the slots that hold a step (row, slot)."""
    clock: Tensor
    """Step count of the row with the most steps (row,), on the host (CPU). All rows write their next step to the same
    slot, clock modulo `Lbfgs.history`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lbfgs(Solver[LbfgsState]):
    """L-BFGS for many minimisations (rows) in parallel; defaults are those of `torch.optim.LBFGS`."""

    rate: float = 1.0
    """Step size: factor on the search direction."""
    history: int = 100
    """Number of steps in the history, from which the direction follows."""
    line_search: Literal["none", "backtracking"] = "none"
    """"none" takes full steps; "backtracking" shrinks a step until the loss falls sufficiently."""
    tolerance_gradient: float = 1e-7
    """A minimisation is finished if no gradient entry exceeds this value."""
    tolerance_change: float = 1e-9
    """A minimisation is finished if the slope of the loss along its direction is weaker than this value. With
    backtracking, a change of variables or loss below this value also finishes it."""
    inner: int = 20
    """Evaluations in an outer step of the published loops."""

    def init(self, x: Tensor) -> LbfgsState:
        rows, n = x.shape
        device = x.device

        def full(value: float, *shape: int, dtype: torch.dtype = x.dtype) -> Tensor:
            return torch.full((rows, *shape), value, dtype=dtype, device=device)

        m = self.history
        return LbfgsState(
            trial=x.clone(),
            finished=full(0, dtype=torch.bool),
            x=x.clone(),
            loss=full(torch.inf),
            gradient=full(0, n),
            d=full(0, n),
            t=full(0),
            slope=full(0),
            shrinks=full(0, dtype=torch.long),
            scale=full(1),
            s=full(0, m, n),
            y=full(0, m, n),
            sy=full(0, m, m, dtype=torch.float64),
            yy=full(0, m, m, dtype=torch.float64),
            filled=full(0, m, dtype=torch.bool),
            clock=torch.zeros(rows, dtype=torch.long),
        )

    def step(self, state: LbfgsState, loss: Tensor, gradient: Tensor) -> LbfgsState:
        first = torch.isinf(state.loss)
        accepted = first | self._accepts(state, loss)
        moved = accepted & ~first

        # the accepted gradient g and the newest pair (s, y), side by side: memory passes cost as much as arithmetic
        columns = gradient.new_empty((len(gradient), 3, gradient.shape[1]))
        torch.sub(state.trial, state.x, out=columns[:, 1])
        torch.sub(gradient, state.gradient, out=columns[:, 2])
        x, columns[:, 0] = state.trial, gradient
        if may_hold(~accepted):
            x = torch.where(accepted[:, None], x, state.x)
            columns[:, 0] = torch.where(accepted[:, None], gradient, state.gradient)
        g = columns[:, 0]
        ys = torch.linalg.vecdot(columns[:, 1], columns[:, 2])
        push = moved & (ys > _CURVATURE)
        stride = columns[:, 1].abs().amax(1)
        if may_hold(~push):
            columns[:, 1:] = torch.where(push[:, None, None], columns[:, 1:], 0)
        d, scale = self._direction(state, columns, ys, push)

        # rows that shrink their step: after too many trials, steepest descent without history
        shrinks = torch.where(accepted, 0, state.shrinks + 1)
        lost = shrinks == _SHRINKS
        stuck = shrinks > 2 * _SHRINKS
        if may_hold(lost):
            state.filled[lost], state.s[lost], state.y[lost] = False, 0, 0
            state.sy[lost], state.yy[lost] = 0, 0
            scale = torch.where(lost, 1, scale)
        keep = ~accepted & ~lost
        if may_hold(keep):
            d = torch.where(keep[:, None], state.d, d)
        t = torch.where(keep, state.t * self._shrink(state, loss), self.rate)
        scaled_step = first | lost
        if may_hold(scaled_step):
            d = torch.where(lost[:, None], -g, d)
            t = torch.where(scaled_step, (self.rate / g.abs().sum(1).clamp_min(1e-30)).clamp_max(self.rate), t)
        slope = torch.where(keep, state.slope, torch.linalg.vecdot(g, d))

        change = torch.where(accepted, loss - state.loss, torch.inf).abs()
        still = moved & ((stride <= self.tolerance_change) | (change < self.tolerance_change))
        steepest = g.abs().amax(1)  # not finite if any value is not
        flat = accepted & ((steepest <= self.tolerance_gradient) | (slope > -self.tolerance_change))
        finished = state.finished | flat | stuck | ~torch.isfinite(steepest)
        if self.line_search == "backtracking":
            finished = finished | still
        return LbfgsState(
            trial=torch.addcmul(x, t[:, None], d),
            finished=finished,
            x=x,
            loss=torch.where(accepted, loss, state.loss),
            gradient=g,
            d=d,
            t=t,
            slope=slope,
            shrinks=shrinks,
            scale=scale,
            s=state.s,
            y=state.y,
            sy=state.sy,
            yy=state.yy,
            filled=state.filled,
            clock=state.clock,
        )

    def outer(self, evaluations: Tensor) -> Tensor:
        return (evaluations + self.inner - 1) // self.inner

    def _accepts(self, state: LbfgsState, loss: Tensor) -> Tensor:
        if self.line_search == "none":
            return torch.ones_like(state.finished)
        return loss <= state.loss + _ARMIJO * state.t * state.slope

    def _shrink(self, state: LbfgsState, loss: Tensor) -> Tensor:
        """Return the factor (row,) on the step size for the next trial, within [.1, .5]. The factor leads to the
        minimum of the parabola through f(0), f(t) = `loss` and the slope f'(0)."""
        rise = loss - state.loss - state.t * state.slope
        factor = -0.5 * state.t * state.slope / rise
        return torch.where(torch.isfinite(factor), factor, 0.1).clamp(0.1, 0.5)

    def _direction(self, state: LbfgsState, columns: Tensor, ys: Tensor, push: Tensor) -> tuple[Tensor, Tensor]:
        """Return the direction d = -H g and γ; H approximates the inverse Hessian. `columns` (row, 3, variable) hold
        the gradient g, the newest step s and the gradient's change y. `ys` (row,) is y·s. Rows in the mask `push` first
        store (s, y) in their history, in place, all in the same slot; (s, y) is zero in other rows."""
        g, s, y = columns.unbind(1)
        scale = torch.where(push, ys / torch.linalg.vecdot(y, y).clamp_min(1e-30), state.scale)
        if not may_hold(push) and not may_hold(state.filled):
            return -scale[:, None] * g, scale
        clock = int(state.clock.max())
        state.clock.fill_(clock + 1)
        slot, used = clock % self.history, min(clock + 1, self.history)
        state.s[:, slot], state.y[:, slot], state.filled[:, slot] = s, y, push
        block = len(g) if g.is_cuda else max(1, _CACHE // (2 * used * g[0].nbytes))
        blocks = [
            _compact(
                columns[at],
                state.s[at, :used],
                state.y[at, :used],
                state.sy[at, :used, :used],
                state.yy[at, :used, :used],
                state.filled[at, :used],
                scale[at],
                slot,
            )
            for at in (slice(first, first + block) for first in range(0, len(g), block))
        ]
        return torch.cat(blocks), scale


def _compact(
    columns: Tensor, s: Tensor, y: Tensor, sy: Tensor, yy: Tensor, filled: Tensor, scale: Tensor, slot: int
) -> Tensor:
    """Return the direction -H g for a block of rows, small enough that its history stays in cache for both reads.
    `columns` (row, 3, variable) are the gradient g, and the newest step and gradient change, stored in `slot`. The
    other arguments are the fields of `LbfgsState`; the products `sy` and `yy` are updated in place."""
    with_s, with_y = (columns @ s.mT).double(), (columns @ y.mT).double()
    sy[:, slot] = with_y[:, 1]  # s_new·y_j
    sy[:, :, slot] = with_s[:, 2]  # s_i·y_new
    yy[:, slot] = yy[:, :, slot] = with_y[:, 2]

    # R = the upper triangle of SᵀY in order of age: the slots rotated; empty ones have a unit diagonal
    oldest = (slot + 1) % s.shape[1]
    r = sy.roll((-oldest, -oldest), (1, 2))
    diagonal = r.diagonal(dim1=1, dim2=2)
    d_plain = diagonal.clone()
    diagonal.add_((~filled).roll(-oldest, 1))
    p, q = with_s[:, 0].roll(-oldest, 1), with_y[:, 0].roll(-oldest, 1)
    gamma = scale.double()[:, None]
    u = torch.linalg.solve_triangular(r, p[:, :, None], upper=True)[:, :, 0]
    by_slot = u.roll(oldest, 1)
    yyu = (yy @ by_slot[:, :, None])[:, :, 0].roll(-oldest, 1)
    right = d_plain * u + gamma * (yyu - q)
    v = torch.linalg.solve_triangular(r.mT, right[:, :, None], upper=False)[:, :, 0]
    g = columns[:, 0]
    along_s = v.roll(oldest, 1).to(g.dtype)[:, None, :]
    along_y = (gamma * by_slot).to(g.dtype)[:, None, :]
    d: Tensor = -(scale[:, None] * g + (along_s @ s)[:, 0] - (along_y @ y)[:, 0])
    return d
