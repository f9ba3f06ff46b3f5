"""Delayed sending: a client holds a coordinate back until the examples in its batches agree."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bench.defenses.base import Context, Shapes, Shown, State, Tensors, Transform
from bench.defenses.ranges import at_least, share

_HELD, _SPREAD = "held/", "spread/"


@dataclass(frozen=True, slots=True, kw_only=True)
class SendUnambiguous(Transform):
    """Compress by delay: hold each coordinate back until its gradient is unambiguous (Tsuzuku et al. 2018, algorithm
    1), and send its sum r of held gradients once r² > α·v, until then zero. In a local step on B examples z with
    gradients g_z, each client updates r ← r + Σ_z g_z/B and v ← v + Σ_z (g_z/B)² for each coordinate. After sending, r
    = v = 0; without sending, v ← ζ·v. Both start at 0. Raises `ValueError` outside stage `step`, the only stage with
    the batch mean and each example's gradient."""

    needs_examples: ClassVar[bool] = True
    reads: ClassVar[Shown] = "zeros"

    owner: Literal["server", "client"] = "client"
    """Each client holds its sums."""
    threshold: float
    """α, the least ratio r²/v for sending."""
    decay: float
    """ζ, the factor on v after a step without sending."""

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
            # each g_z/B once: a coordinate with a single nonzero example has r² = v to the last bit, on every machine
            parts = each / each.shape[1]
            r, before = held.to(tensor) + tensor, held.to(tensor)
            v = spread.to(tensor) + parts.square().sum(1)
            clear = (before + parts.sum(1)).square() > self.threshold * v
            sent[name] = torch.where(clear, r, 0.0)
            # in the state's precision, as between rounds: a description then computes equal values
            after[_HELD + name] = r.where(~clear, 0.0).to(held)
            after[_SPREAD + name] = (self.decay * v.where(~clear, 0.0)).to(spread)
        return sent, after

    def smoothed(
        self, tensors: Tensors, state: State, context: Context, width: float
    ) -> tuple[dict[str, Tensor], State] | None:
        """Simulate the transform on an attacker's candidate gradients `tensors`, with a gradual transition from held to
        sent, so that a search has a useful derivative. Return the result and the new state; None for α = 0, because
        every coordinate is then sent, and without the examples' gradients.

        A coordinate's output is r·sigmoid((r²/(α·v) - 1)/`width`); the rest of r stays held. r is the coordinate's sum
        of held gradients, v its sum of squares (both in `state`), and α the `threshold`. `width` is relative to the
        threshold, `context` the place in the training."""
        if context.examples is None or not self.threshold:
            return None
        sent, after = {}, dict(state)
        for name, tensor in tensors.items():
            each = context.examples[name].detach()
            r = state[_HELD + name].to(tensor) + tensor
            v = state[_SPREAD + name].to(tensor) + (each / each.shape[1]).square().sum(1)
            ratio = r.square() / (self.threshold * v).clamp_min(torch.finfo(tensor.dtype).tiny)
            share = torch.sigmoid((ratio - 1) / width)
            sent[name] = share * r
            after[_HELD + name] = (r - sent[name]).detach().to(state[_HELD + name])
            after[_SPREAD + name] = (self.decay * v * (1 - share)).detach().to(state[_SPREAD + name])
        return sent, after

    def expected(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        return self.update(tensors, state, context)

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor] | None:
        """Simulate the transform on an attacker's candidate gradients `tensors` in a client's first step, with the
        choice that the attacked reading `observed` shows: the candidate at sent (nonzero) coordinates, and zero at the
        others. None for later steps, because the sum r of held gradients is then unknown to the attacker. `context`:
        place in the training, with round and step."""
        if context.round or context.step:
            return None
        return {name: torch.where(observed[name] != 0, value, 0.0) for name, value in tensors.items()}
