"""Adam and signed Adam with step decay, for many rows in parallel (Kingma & Ba 2015; Geiping et al. 2020)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.attacks.solvers.base import Solver, State


@dataclass
class AdamState(State):
    """State of Adam between steps, for many minimisations (rows) in parallel: running means of the gradient and of its
    square."""

    first: Tensor
    """Running mean of the gradient (row, variable)."""
    second: Tensor
    """Running mean of the squared gradient (row, variable)."""
    count: Tensor
    """Iterations so far (row,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adam(Solver[AdamState]):
    """Adam for many minimisations (rows) in parallel, optionally on the gradient's sign, with step decay and a range
    for the variables."""

    rate: float
    """Step size."""
    signed: bool = False
    """True replaces the gradient by its sign."""
    milestones: tuple[int, ...] = ()
    """Iteration counts at which the rate is multiplied by `decay`."""
    decay: float = 0.1
    """Factor on the rate at each milestone."""
    box: tuple[float, float] | None = None
    """Smallest and largest value allowed for a variable, enforced after each step; None sets no limit."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay factors of the running means of the gradient and of its square."""
    eps: float = 1e-8
    """Constant added to the denominator, for stability."""

    def init(self, x: Tensor) -> AdamState:
        zeros = torch.zeros_like(x)
        count = torch.zeros(len(x), dtype=torch.long, device=x.device)
        return AdamState(trial=x.clone(), finished=count.bool(), first=zeros, second=zeros.clone(), count=count)

    def step(self, state: AdamState, loss: Tensor, gradient: Tensor) -> AdamState:
        g = gradient.sign() if self.signed else gradient
        count = state.count + 1
        first = self.betas[0] * state.first + (1 - self.betas[0]) * g
        second = self.betas[1] * state.second + (1 - self.betas[1]) * g * g
        power = count.to(g.dtype)[:, None]
        corrected = first / (1 - self.betas[0] ** power)
        scale = (second / (1 - self.betas[1] ** power)).sqrt() + self.eps
        passed = sum(
            ((count > milestone).to(g.dtype) for milestone in self.milestones),
            torch.zeros(len(g), dtype=g.dtype, device=g.device),
        )
        x = state.trial - self.rate * (self.decay ** passed[:, None]) * corrected / scale
        if self.box is not None:
            x = x.clamp(*self.box)
        return AdamState(trial=x, finished=state.finished, first=first, second=second, count=count)

    def outer(self, evaluations: Tensor) -> Tensor:
        return evaluations
