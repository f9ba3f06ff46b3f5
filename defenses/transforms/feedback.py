"""Error feedback: what a client does not send it remembers, and adds to its next update."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bench.defenses.base import Context, Shapes, Shown, State, Tensors, Transform
from bench.defenses.transforms.mask import KeepLargest


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberUnsent(Transform):
    """With a client's memory m, 0 before its first round: p = m + g, send top_k(p), m ← p - top_k(p) (Stich et al.
    2018, algorithm 1, with η∇f as g).  All that was sent plus m is the sum of all g.

    `share` of the coordinates is not sent, those of least magnitude over all tensors, as `KeepLargest` has it.
    """

    owner: Literal["server", "client"] = "client"
    reads: ClassVar[Shown] = KeepLargest.reads

    share: float

    def __post_init__(self) -> None:
        KeepLargest(share=self.share)

    def initial(self, shapes: Shapes) -> State:
        return {name: torch.zeros(shape) for name, shape in shapes.items()}

    def update(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        whole = {name: tensor + state[name].to(tensor) for name, tensor in tensors.items()}
        sent = KeepLargest(share=self.share).apply(whole, context)
        return sent, {name: (value - sent[name]).detach() for name, value in whole.items()}

    def expected(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        """The candidate under its own mask: nothing is random."""
        return self.update(tensors, state, context)

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor] | None:
        """In a client's first round, whose memory is 0, what `KeepLargest` makes of the reading; later no attacker
        knows the memory, and the harness asks for no description."""
        if context.round:
            return None
        return KeepLargest(share=self.share).simulate(tensors, observed, context)
