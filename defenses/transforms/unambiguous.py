"""Delay: hold a coordinate back until a batch's examples agree."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bench.defenses.base import Context, Shapes, Shown, State, Tensors, Transform
from bench.defenses.ranges import at_least, share

_HELD, _SPREAD = "held/", "spread/"


@dataclass(frozen=True, slots=True, kw_only=True)
class SendUnambiguous(Transform):
    """Per client coordinate, over the B examples z in a local step: r ← r + Σ_z g_z/B, v ← v + Σ_z (g_z/B)².

    If r² > α·v: send r, reset r = v = 0.  Otherwise send zero, v ← ζ·v (Tsuzuku et al. 2018, algorithm 1).  r and v
    start at 0.  Raises ValueError outside stage `step`, which has the batch mean and each example.
    """

    needs_examples: ClassVar[bool] = True
    reads: ClassVar[Shown] = "zeros"

    owner: Literal["server", "client"] = "client"
    threshold: float
    """α."""
    decay: float
    """ζ."""

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
        """The candidates' own selection; deterministic."""
        return self.update(tensors, state, context)

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor] | None:
        """A client's first step: the candidate at the reading's nonzero coordinates; later None, since r is secret."""
        if context.round or context.step:
            return None
        return {name: torch.where(observed[name] != 0, value, 0.0) for name, value in tensors.items()}
