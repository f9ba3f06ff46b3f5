"""Adaptive clipping with a learned mean and scale for each coordinate (Pichapati et al. 2019)."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bench.defenses.base import AddedNoise, Context, Scaling, Shapes, State, Tensors, Transform
from bench.defenses.transforms.clip import clip_factors
from bench.defenses.transforms.rows import broadcast, norms, rescaled

_MEAN, _SPREAD = "mean/", "variance/"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveClip(Transform):
    """Clip and noise each gradient coordinate on a learned scale. For each coordinate g of a row (a client's or an
    example's tensors): normalise, w = (g - a)/b; clip w to norm 1 over all coordinates; add noise with deviation
    `multiplier`; undo the normalisation, b·w + a. The noised results g̃ update mean a and spread s, hence scale b:

    - v = (g̃ - a)² - b²·multiplier²/n, limited to [h1, h2]; n is the number of rows that share a state.
    - a ← .99a + .01g̃; s² ← .9s² + .1v; b_i = √s_i·√Σs.

    If rows share a state, g̃ in these formulas is the mean of the rows. The state (memory between rounds) depends only
    on noised gradients."""

    random: ClassVar[bool] = True

    owner: Literal["server", "client"]
    """The state's owner: `server` for a common state, `client` for a state per client."""
    multiplier: float
    """Noise deviation on the normalised gradient, whose norm is at most 1."""
    low: float
    """h1, lower limit for v."""
    high: float
    """h2, upper limit for v."""
    as_cited: bool = False
    """True for s ← .9s + .1v and noise with deviation multiplier², as in the repository cited by Fed-αCDP."""

    @property
    def steady(self) -> bool:
        return True

    def initial(self, shapes: Shapes) -> State:
        """Return the state (memory) before round 0: mean a = 0 and spread s = √(h1·h2) for each coordinate, with the
        limits h1 = `low` and h2 = `high`. The state stores s², or s if `as_cited`. `shapes`: name → shape of each
        tensor without leading axes."""
        start = (self.low * self.high) ** (0.5 if self.as_cited else 1.0)
        return {_MEAN + name: torch.zeros(shape) for name, shape in shapes.items()} | {
            _SPREAD + name: torch.full(shape, start) for name, shape in shapes.items()
        }

    def update(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        lead = context.lead
        # rows that share a state: a batch's examples, or all clients of the round
        shared = 1 if self.owner == "client" else 0
        between = range(shared, lead)
        means, widths = self._read(tensors, state, lead, shared)
        clipped = _unit({n: (v - means[n]) / widths[n] for n, v in tensors.items()}, context)
        deviation = self._deviation
        noised = {
            name: widths[name] * (value + deviation * context.draws.normal(name, value)) + means[name]
            for name, value in clipped.items()
        }
        after: dict[str, Tensor] = {}
        for name, value in noised.items():
            old = state[_MEAN + name]
            rows = math.prod(value.shape[axis] for axis in between)
            mean = value.mean(tuple(between)) if between else value
            width = widths[name].reshape(old.shape).to(old)
            v = (mean.to(old) - old).square() - (width * deviation).square() / rows
            after[_MEAN + name] = 0.99 * old + 0.01 * mean.to(old)
            after[_SPREAD + name] = 0.9 * state[_SPREAD + name] + 0.1 * v.clamp(self.low, self.high)
        return noised, after

    def noise(self, context: Context, state: State) -> AddedNoise:
        """Return the noise that attackers assume: variance (b·`multiplier`)² on each coordinate, with the coordinate's
        scale b. The value is exact, because b follows from `state`, the memory before the transform, which is public.
        `context`: place in the training."""
        of_client = self.owner == "client"
        _, widths = self._scales(state, int(of_client))
        variance = {name: (self._deviation * width).square() for name, width in widths.items()}
        return AddedNoise(variance={n: v.mean(0) for n, v in variance.items()} if of_client else variance)

    @property
    def _deviation(self) -> float:
        return self.multiplier**2 if self.as_cited else self.multiplier

    def _scales(self, state: State, shared: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return mean a and scale b = √s·√Σs of each coordinate, from the spreads s in `state`: name → (*lead, *shape).
        `shared` is the number of leading axes of the state: 1 for a state per client, else 0."""
        means = {key.removeprefix(_MEAN): value for key, value in state.items() if key.startswith(_MEAN)}
        s = {n: state[_SPREAD + n] if self.as_cited else state[_SPREAD + n].sqrt() for n in means}
        total = sum((value.flatten(shared).sum(-1) for value in s.values()), torch.zeros(()))
        return means, {n: value.sqrt() * broadcast(total.sqrt(), value) for n, value in s.items()}

    def _read(
        self, tensors: Tensors, state: State, lead: int, shared: int
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the means a and the scales b of the coordinates, reshaped to broadcast against the rows. The rows have
        `lead` leading axes, the state `shared`."""

        def over_rows(name: str, value: Tensor) -> Tensor:
            shape = (*value.shape[:shared], *[1] * (lead - shared), *value.shape[shared:])
            return value.reshape(shape).to(tensors[name])

        means, widths = self._scales(state, shared)
        return (
            {name: over_rows(name, means[name]) for name in tensors},
            {name: over_rows(name, widths[name]) for name in tensors},
        )


def _unit(tensors: Tensors, context: Context) -> dict[str, Tensor]:
    return rescaled(tensors, Scaling(clip_factors(norms(tensors, context.lead), 1.0, "flat")), context)
