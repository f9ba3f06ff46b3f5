"""Solver interface: descent methods for many rows in parallel, a row per minimisation.

A solver's configuration is frozen; its state is a separate dataclass of tensors with a leading row axis. Evaluation,
restarts and replacement are in `loop.py`."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor


@dataclass
class State:
    """State of a solver between steps: tensors with a leading row axis; a row is a minimisation."""

    trial: Tensor
    """Next point to evaluate (row, variable)."""
    finished: Tensor
    """True for rows (row,) that the solver cannot improve further."""


S = TypeVar("S", bound=State)


class Solver(ABC, Generic[S]):
    """A descent method for many independent minimisations; each is a row of the tensors. The type S is the solver's
    class of `State`."""

    @abstractmethod
    def init(self, x: Tensor) -> S:
        """Return the first state of rows (minimisations) that start at the points `x` (row, variable)."""

    @abstractmethod
    def step(self, state: S, loss: Tensor, gradient: Tensor) -> S:
        """Return the state with the next point to evaluate for each row (minimisation). `loss` (row,) and `gradient`
        (row, variable) are the values at the present point, `state.trial`. The method may write into `state`; callers
        do not use the old state again."""

    @abstractmethod
    def outer(self, evaluations: Tensor) -> Tensor:
        """Convert `evaluations` (row,) to iterations (row,) as the attack's paper counts them. For example, an
        iteration of L-BFGS has 20 evaluations."""


def select(state: S, rows: Tensor) -> S:
    """Take some minimisations out of a solver's `state`, for example those that still run: return a state with the rows
    numbered `rows` only."""
    values = {item.name: getattr(state, item.name) for item in fields(state)}
    return replace(state, **{name: value[rows.to(value.device)] for name, value in values.items()})


def merge(state: S, fresh: S, rows: Tensor) -> S:
    """Return a solver's `state` with some rows (minimisations) replaced. The mask `rows` (row,) is True for the rows to
    replace; the rows of `fresh` replace them in this order."""
    merged = {}
    for item in fields(state):
        value = getattr(state, item.name).clone()
        value[rows.to(value.device)] = getattr(fresh, item.name)
        merged[item.name] = value
    return replace(state, **merged)


def put(target: Tensor, rows: Tensor, chosen: Tensor, values: Tensor) -> None:
    """Write results into some rows (minimisations) of a tensor in place: target[rows[chosen]] = values[chosen]. On a
    GPU the host does not wait for the mask.

    - `rows`: distinct row numbers in `target`, the tensor that changes.
    - `chosen`: mask over `rows` and `values`.
    - `values`: a value for each number in `rows`."""
    if not target.is_cuda:
        target[rows[chosen]] = values[chosen]
        return
    mask = chosen.reshape(-1, *(1,) * (values.dim() - 1))
    target[rows] = torch.where(mask, values, target[rows])


def may_hold(any_of: Tensor) -> bool:
    """Return whether the mask `any_of` may contain True; after False, a caller can skip work. On a GPU the result is
    always True, because reading the mask would wait for the device."""
    return any_of.is_cuda or bool(any_of.any())


# (row, variable) → loss (row,) and gradient (row, variable)
Evaluate = Callable[[Tensor], tuple[Tensor, Tensor]]


class Problem(Protocol):
    """Many independent minimisations for a solver; each is a row with its own start, and a restart begins the row
    again. Row and restart numbers are tensors on the host (CPU)."""

    def start(self, row: int, restart: int) -> Tensor:
        """Return the first point (variable,) of a minimisation. `row` is its number, `restart` the restart's number, 0
        for the first start."""

    def subset(self, rows: Tensor, restarts: Tensor) -> Evaluate:
        """Return the objective of some minimisations: a function from points (row, variable) to losses (row,) and
        gradients (row, variable). `rows` (row,) are their numbers, `restarts` (row,) the numbers of their restarts."""

    def zero_gradient_loss(self, rows: Tensor) -> Tensor:
        """Return the loss (row,) of a candidate whose gradient is zero, for the minimisations numbered `rows`. The
        loop's limits are shares of this loss."""

    def noise_floor(self, rows: Tensor) -> Tensor:
        """Return the loss (row,) that the defense's noise causes at the true examples, for the minimisations numbered
        `rows`. Below this value, a lower loss does not mean a better candidate."""

    def in_range(self, x: Tensor) -> Tensor:
        """Return the inputs (row, value) at the points `x` (row, variable) of some minimisations, divided
        by the data range's width. The solvers' loop estimates from them how exact the inputs are."""

    def loss_scale(self, rows: Tensor) -> Tensor:
        """Return the factor (row,) by which the loop multiplies losses before a solver gets them, for the minimisations
        numbered `rows`. The factor is necessary because the solver's tolerances are absolute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLimits:
    """Limits for the minimisation of a row, such as the search for the examples behind a reading (the observed update).
    A run is a minimisation from a start; restarts share the row's evaluations. The *zero-gradient loss* is the loss of
    a candidate with a zero gradient. A run ends

    - if its solver has converged, or a value is not finite;
    - if its loss is below `stop_loss`;
    - if its least loss is below `explained` and has become flat (`flat_after`, `least_fall`);
    - if its least loss is below `explained` and its inputs are exact to `precision`;
    - if restarts remain, its equal share of the budget is spent, and its least loss is above `abandon_above`.

    The loop raises `abandon_above` and `keep_below` to at least twice the noise floor, the loss that noise causes at
    the true examples."""

    evaluations: int
    """Evaluations allowed per row, restarts included."""
    restarts: int = 0
    """Restarts allowed per row."""
    stop_loss: float | None = None
    """Loss below which a row is finished, in the normalised loss that the solver gets; None never stops by the loss."""
    look_every: int = 1
    """Evaluations between comparisons with `stop_loss`."""
    flat_after: int | None = None
    """Evaluations over which the fall in loss is measured; None never stops a flat run."""
    least_fall: float = 0.01
    """Fall over `flat_after` evaluations as a share of the loss; a smaller fall counts as flat."""
    explained: float = 1e-3
    """Share of the zero-gradient loss below which a reading counts as explained."""
    precision: float | None = None
    """Root mean square error of inputs, as a share of the data's range, at which an explained run ends. None never ends
    a run by precision. The error is estimated from the movement of the inputs. If the inputs move by m over the last
    `precise_after` evaluations and by m / r over as many evaluations before, they will still move by m r / (1 - r)."""
    precise_after: int = 20
    """Evaluations between estimates of the error."""
    abandon_above: float = 1e-2
    """Share of the zero-gradient loss above which a run is abandoned for a restart."""
    keep_below: float = 1e-4
    """Share of the zero-gradient loss. A run that ends above this share is restarted while budget remains."""
    leave_stalled: bool = False
    """True restarts a converged run only if its loss is at least `stalled`; a later refinement in float64 continues the
    other runs."""
    stalled: float = 1.0
    """Loss limit for `leave_stalled`, as a share of the zero-gradient loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Result of many minimisations, with an entry per row (minimisation). Counts are tensors on the host (CPU)."""

    x: Tensor
    """Point with the least loss over all runs (row, variable)."""
    loss: Tensor
    """Least loss over all runs (row,)."""
    evaluations: Tensor
    """Evaluations used (row,)."""
    restarts: Tensor
    """Number of restarts used (row,)."""
    runs: Tensor
    """Number of the run with the least loss (row,); 0 is the first start, n the n-th restart."""
    marks: tuple[int, ...]
    """Evaluation counts at which losses are noted: powers of two, then the last evaluation."""
    losses: Tensor
    """Least loss until each evaluation count in `marks`: (mark, row)."""
    trajectory: Tensor
    """Points with the losses in `losses`, (mark, row, variable), for the first rows only (the argument `traced` of
    `minimise`)."""
