"""What a solver is, a descent method for many rows in parallel, and what it takes and returns.

Configuration is frozen; state is a separate dataclass of tensors with a leading row axis.  The
loop that evaluates, restarts and replaces rows is written once, in `loop.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor


@dataclass
class State:
    """`trial` (row, variable): where the objective is to be evaluated next; `finished` (row,): no step helps."""

    trial: Tensor
    finished: Tensor


S = TypeVar("S", bound=State)


class Solver(ABC, Generic[S]):
    """A descent method for many independent rows."""

    @abstractmethod
    def init(self, x: Tensor) -> S:
        """The state of rows that start at `x` (row, variable)."""

    @abstractmethod
    def step(self, state: S, loss: Tensor, gradient: Tensor) -> S:
        """The state after loss (row,) and gradient (row, variable) at `trial`, with each row's next trial.

        May write into `state`, which is not used again.
        """

    @abstractmethod
    def outer(self, evaluations: Tensor) -> Tensor:
        """Evaluations (row,) → iterations (row,) as the published loops count them."""


def select(state: S, rows: Tensor) -> S:
    """The state of `rows`, their numbers, alone."""
    values = {item.name: getattr(state, item.name) for item in fields(state)}
    return replace(state, **{name: value[rows.to(value.device)] for name, value in values.items()})


def merge(state: S, fresh: S, rows: Tensor) -> S:
    """`state` with `rows` (a mask) replaced by `fresh`, the state of those rows alone."""
    merged = {}
    for item in fields(state):
        value = getattr(state, item.name).clone()
        value[rows.to(value.device)] = getattr(fresh, item.name)
        merged[item.name] = value
    return replace(state, **merged)


def put(target: Tensor, rows: Tensor, chosen: Tensor, values: Tensor) -> None:
    """target[rows[chosen]] = values[chosen], of `rows` all different; on a GPU without waiting for the mask."""
    if not target.is_cuda:
        target[rows[chosen]] = values[chosen]
        return
    mask = chosen.reshape(-1, *(1,) * (values.dim() - 1))
    target[rows] = torch.where(mask, values, target[rows])


def may_hold(any_of: Tensor) -> bool:
    """Whether a mask holds anywhere; on a GPU, where an answer is worth a wait, it may."""
    return any_of.is_cuda or bool(any_of.any())


# (row, variable) → loss (row,) and gradient (row, variable)
Evaluate = Callable[[Tensor], tuple[Tensor, Tensor]]


class Problem(Protocol):
    """Independent minimisations, one a row; numbers of rows and of restarts come on the host."""

    def start(self, row: int, restart: int) -> Tensor:
        """Where a row begins on that restart: (variable,)."""

    def subset(self, rows: Tensor, restarts: Tensor) -> Evaluate:
        """The objective of some rows alone, each on its restart; both (row,)."""

    def zero_gradient_loss(self, rows: Tensor) -> Tensor:
        """The loss (row,) of a candidate that sends a zero gradient, so explains nothing."""

    def noise_floor(self, rows: Tensor) -> Tensor:
        """The loss (row,) that noise leaves at the truth: a lower one teaches nothing more."""

    def loss_scale(self, rows: Tensor) -> Tensor:
        """The factor (row,) from the loss to the normalised loss; the tolerances of solvers are absolute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLimits:
    """The limits of a row.

    `evaluations` and `restarts` are per row, restarts inside the budget.  A run of a row ends

    - when its solver has converged, or a value is not finite;
    - when its normalised loss is below `stop_loss`, compared every `look_every` evaluations;
    - when its least loss is below `explained` times the zero-gradient loss and fell, over the last `flat_after`
      evaluations, by less than a share of `least_fall`;
    - when restarts remain, its equal share of the budget is spent, and its least loss is above `abandon_above`
      times the zero-gradient loss.

    A run that ended above `keep_below` times the zero-gradient loss is restarted while budget remains.  With
    `leave_stalled`, a converged run is restarted only if it is at `stalled` times the zero-gradient loss or above:
    below, it is left to a refinement.  `abandon_above` and `keep_below` count as at least twice the noise floor.
    """

    evaluations: int
    restarts: int = 0
    stop_loss: float | None = None
    look_every: int = 1
    flat_after: int | None = None
    least_fall: float = 0.01
    explained: float = 1e-3
    abandon_above: float = 1e-2
    keep_below: float = 1e-4
    leave_stalled: bool = False
    stalled: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Per row: the point `x` (row, variable) of least loss over all runs, that loss, evaluations and restarts
    used; `runs` is the restart that found the point.  The counts are on the host, whatever the problem's device.

    `marks` are evaluation counts: powers of two, and the last.  `losses` (mark, row) are the least losses so
    far at each row's own count; `trajectory` (mark, row, variable) are their points, of the first rows alone.
    """

    x: Tensor
    loss: Tensor
    evaluations: Tensor
    restarts: Tensor
    runs: Tensor
    marks: tuple[int, ...]
    losses: Tensor
    trajectory: Tensor
