"""Delay: a coordinate is held back until a batch's examples agree on it."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bench.defenses.base import Context, Shapes, Shown, State, Tensors, Transform
from bench.defenses.ranges import at_least, share

_HELD, _SPREAD = "held/", "spread/"


@dataclass(frozen=True, slots=True, kw_only=True)
class SendUnambiguous(Transform):
    """For each coordinate of a client, over the B examples z of a local step: r ← r + Σ_z g_z/B, v ← v + Σ_z (g_z/B)².
    Where r² > α·v, r is sent and r = v = 0; elsewhere nothing is sent and v ← ζ·v (Tsuzuku et al. 2018, algorithm 1).

    `threshold` α, `decay` ζ.  r and v are 0 before a client's first step.  Raises ValueError anywhere but at stage
    `step`, which has the batch's mean and each example.
    """

    needs_examples: ClassVar[bool] = True
    reads: ClassVar[Shown] = "zeros"

    owner: Literal["server", "client"] = "client"
    threshold: float
    decay: float

    def __post_init__(self) -> None:
        at_least("threshold", self.threshold)
        share("decay", self.decay)

    def initial(self, shapes: Shapes) -> State:
        return {_HELD + name: torch.zeros(shape) for name, shape in shapes.items()} | {
            _SPREAD + name: torch.zeros(shape) for name, shape in shapes.items()
        }

    def update(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        if context.examples is None:
            raise ValueError(f"whether examples agree is told by each one's gradient; stage {context.stage} has none")
        sent, after = {}, dict(state)
        for name, tensor in tensors.items():
            held, spread = state[_HELD + name], state[_SPREAD + name]
            each = context.examples[name].detach()
            # each g_z/B once: a coordinate that one example alone has is r² = v to the last bit, on every machine
            parts = each / each.shape[1]
            r, before = held.to(tensor) + tensor, held.to(tensor)
            v = spread.to(tensor) + parts.square().sum(1)
            clear = (before + parts.sum(1)).square() > self.threshold * v
            sent[name] = torch.where(clear, r, 0.0)
            # in the state's own precision, in which rounds keep it: a description then holds the same
            after[_HELD + name] = r.where(~clear, 0.0).to(held)
            after[_SPREAD + name] = (self.decay * v.where(~clear, 0.0)).to(spread)
        return sent, after

    def expected(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        """The candidates' own choice: nothing is random."""
        return self.update(tensors, state, context)

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor] | None:
        """In a client's first step, the candidate where the reading is not zero; later nobody else knows r."""
        if context.round or context.step:
            return None
        return {name: torch.where(observed[name] != 0, value, 0.0) for name, value in tensors.items()}
