"""What a solver is: a descent method for many rows in parallel, each as if it were alone.

Configuration is frozen; state is a separate dataclass of tensors with a leading row axis.  The
loop that evaluates, restarts and replaces rows is written once, in `loop.py`.
"""

import dataclasses
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from torch import Tensor


@dataclasses.dataclass
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

        May write into `state`, which is not used again."""

    @abstractmethod
    def outer(self, evaluations: Tensor) -> Tensor:
        """Evaluations (row,) → iterations (row,) as the published loops count them."""


def select(state: S, rows: Tensor) -> S:
    """The state of some rows (a mask) alone."""
    return dataclasses.replace(
        state, **{item.name: getattr(state, item.name)[rows] for item in dataclasses.fields(state)}
    )


def merge(state: S, fresh: S, rows: Tensor) -> S:
    """`state` with `rows` (a mask) replaced by `fresh`, the state of those rows alone."""
    merged = {}
    for item in dataclasses.fields(state):
        value = getattr(state, item.name).clone()
        value[rows] = getattr(fresh, item.name)
        merged[item.name] = value
    return dataclasses.replace(state, **merged)
