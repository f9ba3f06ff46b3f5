"""Solver interface: descent methods for many rows in parallel.

Configuration is frozen; state is a separate dataclass, tensors with a leading row axis. Evaluation, restarts and
replacement are in `loop.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor


@dataclass
class State:
    """State of a solver, rows first."""

    trial: Tensor
    """Next point for evaluation (row, variable)."""
    finished: Tensor
    """Rows without a helpful step left (row,)."""


S = TypeVar("S", bound=State)


class Solver(ABC, Generic[S]):
    """A descent method for many independent rows."""

    @abstractmethod
    def init(self, x: Tensor) -> S:
        """State of rows starting at `x` (row, variable)."""

    @abstractmethod
    def step(self, state: S, loss: Tensor, gradient: Tensor) -> S:
        """State with each row's next trial, after loss (row,) and gradient (row, variable) at `trial`. May write into
        `state`, which is not used again."""

    @abstractmethod
    def outer(self, evaluations: Tensor) -> Tensor:
        """Evaluations (row,) → iterations (row,) as counted by the published loops."""


def select(state: S, rows: Tensor) -> S:
    """State of the rows numbered `rows`."""
    values = {item.name: getattr(state, item.name) for item in fields(state)}
    return replace(state, **{name: value[rows.to(value.device)] for name, value in values.items()})


def merge(state: S, fresh: S, rows: Tensor) -> S:
    """`state` with the rows in the mask `rows` replaced by `fresh`."""
    merged = {}
    for item in fields(state):
        value = getattr(state, item.name).clone()
        value[rows.to(value.device)] = getattr(fresh, item.name)
        merged[item.name] = value
    return replace(state, **merged)


def put(target: Tensor, rows: Tensor, chosen: Tensor, values: Tensor) -> None:
    """target[rows[chosen]] = values[chosen], for distinct `rows`; on a GPU without waiting for the mask."""
    if not target.is_cuda:
        target[rows[chosen]] = values[chosen]
        return
    mask = chosen.reshape(-1, *(1,) * (values.dim() - 1))
    target[rows] = torch.where(mask, values, target[rows])


def may_hold(any_of: Tensor) -> bool:
    """Whether any mask value is true; on a GPU always True, which saves a synchronisation."""
    return any_of.is_cuda or bool(any_of.any())


# (row, variable) → loss (row,) and gradient (row, variable)
Evaluate = Callable[[Tensor], tuple[Tensor, Tensor]]


class Problem(Protocol):
    """Independent minimisations, a row each; row and restart numbers are on the host."""

    def start(self, row: int, restart: int) -> Tensor:
        """Start of a row for this restart: (variable,)."""

    def subset(self, rows: Tensor, restarts: Tensor) -> Evaluate:
        """Objective for some rows, each at its restart; both (row,)."""

    def zero_gradient_loss(self, rows: Tensor) -> Tensor:
        """Loss (row,) of a candidate with a zero gradient, which explains nothing."""

    def noise_floor(self, rows: Tensor) -> Tensor:
        """Loss (row,) caused by noise at the truth; a lower loss carries no information."""

    def loss_scale(self, rows: Tensor) -> Tensor:
        """Factor (row,) from loss to normalised loss; solver tolerances are absolute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLimits:
    """Limits per row; restarts share the row's budget.

    A run ends

    - if its solver has converged, or a value is not finite;
    - below `stop_loss`;
    - if its least loss is below `explained` and has become flat (`flat_after`, `least_fall`);
    - if restarts remain, its equal share of the budget is spent, and its least loss is above `abandon_above`.

    `abandon_above` and `keep_below` are at least twice the noise floor.
    """

    evaluations: int
    restarts: int = 0
    stop_loss: float | None = None
    """Normalised loss at which a row is finished."""
    look_every: int = 1
    """Evaluations between comparisons with `stop_loss`."""
    flat_after: int | None = None
    """Evaluations over which the fall in loss is measured."""
    least_fall: float = 0.01
    """Share of the loss; a smaller fall counts as flat."""
    explained: float = 1e-3
    """Share of the zero-gradient loss below which a reading counts as explained."""
    abandon_above: float = 1e-2
    """Share of the zero-gradient loss above which a run is abandoned."""
    keep_below: float = 1e-4
    """Share of the zero-gradient loss; a run ending above is restarted while budget remains."""
    leave_stalled: bool = False
    """Restart a converged run only at or above `stalled`; lower runs are left to a refinement."""
    stalled: float = 1.0
    """Share of the zero-gradient loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Result per row; counts are on the host."""

    x: Tensor
    """Point with the least loss over all runs (row, variable)."""
    loss: Tensor
    """Least loss (row,)."""
    evaluations: Tensor  # (row,)
    restarts: Tensor
    """Restarts used (row,)."""
    runs: Tensor
    """Restart with the least loss (row,)."""
    marks: tuple[int, ...]
    """Evaluation counts: powers of two, then the last evaluation."""
    losses: Tensor
    """Least loss so far at each mark (mark, row)."""
    trajectory: Tensor
    """Points of these losses for the first rows (mark, row, variable)."""
