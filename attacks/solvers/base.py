"""What a solver is: rows that move in parallel, each as if it were alone.

Configuration is frozen; state is a separate dataclass of tensors with a leading row axis.  The
loop that evaluates, restarts and drops finished rows is written once, in `loop.py`.
"""

import dataclasses
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from torch import Tensor


@dataclasses.dataclass
class State:
    """`trial` (row, variable): where the objective is to be evaluated next; `finished` (row,)."""

    trial: Tensor
    finished: Tensor


S = TypeVar("S", bound=State)


class Solver(ABC, Generic[S]):
    """A descent method for many independent rows."""

    @abstractmethod
    def init(self, x: Tensor) -> S:
        """The state of fresh rows that start at `x` (row, variable)."""

    @abstractmethod
    def step(self, state: S, loss: Tensor, gradient: Tensor) -> S:
        """Take loss (row,) and gradient (row, variable) at `trial`; choose each row's next trial."""

    @abstractmethod
    def outer(self, evaluations: Tensor) -> Tensor:
        """Evaluations (row,) as the published loops count their iterations."""


def select(state: S, rows: Tensor) -> S:
    """The state of some rows alone."""
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
