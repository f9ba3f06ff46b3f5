"""Error feedback: a client keeps the unsent part of its update and adds it to its next update."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bench.defenses.base import Context, Shapes, Shown, State, Tensors, Transform
from bench.defenses.transforms.mask import KeepLargest


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberUnsent(Transform):
    """Sparsify with error feedback: send the largest coordinates of p = m + g, the sum of memory m and gradient g, and
    keep the rest as memory, m ← p - top_k(p), from m = 0. So the sent values plus m equal the sum of all g. The rule is
    Stich et al. 2018, algorithm 1, with η∇f as g."""

    owner: Literal["server", "client"] = "client"
    """Each client holds its memory."""
    reads: ClassVar[Shown] = KeepLargest.reads

    share: float
    """Share of unsent coordinates, which have the least magnitudes over all tensors."""

    def __post_init__(self) -> None:
        KeepLargest(share=self.share)

    def initial(self, shapes: Shapes) -> State:
        return {name: torch.zeros(shape) for name, shape in shapes.items()}

    def update(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        whole = {name: tensor + state[name].to(tensor) for name, tensor in tensors.items()}
        sent = KeepLargest(share=self.share).apply(whole, context)
        return sent, {name: (value - sent[name]).detach() for name, value in whole.items()}

    def expected(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        return self.update(tensors, state, context)

    def smoothed(
        self, tensors: Tensors, state: State, context: Context, width: float
    ) -> tuple[dict[str, Tensor], State]:
        """Simulate the transform on an attacker's candidate gradients `tensors`, with a gradual transition from unsent
        to sent, so that a search has a useful derivative. The output is a gradual version of the largest coordinates of
        p, the sum of memory (`state`) and gradient. Return the output and the new memory, p minus the output. `width`
        is the relative width of the transition, `context` the place in the training."""
        whole = {name: tensor + state[name].to(tensor) for name, tensor in tensors.items()}
        sent, _ = KeepLargest(share=self.share).smoothed(whole, state, context, width)
        return sent, {name: (value - sent[name]).detach() for name, value in whole.items()}

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor] | None:
        """Simulate the transform on an attacker's candidate gradients `tensors` in round 0, with the mask that the
        attacked reading `observed` shows: the candidate at the sent coordinates. None in later rounds: the memory m is
        then not 0, and attackers do not know it. `context`: place in the training, with the round."""
        if context.round:
            return None
        return KeepLargest(share=self.share).simulate(tensors, observed, context)
