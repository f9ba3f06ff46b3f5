"""Stochastic levels: round each coordinate at random, without bias, to a multiple of a scale."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bench.defenses.base import AddedNoise, Context, State, Tensors, Transform
from bench.defenses.ranges import at_least, positive
from bench.defenses.transforms.rows import broadcast, rows
from bench.gradients import example_gradients, one_hot
from bench.points import UPDATE_STAGES

_EXAMPLES = 16  # public ones, whose gradients tell how large a scale usually is
_MARGIN = 2.0  # times the largest of theirs
_STEEP = 0.9  # from this distance on, in steps, the likelihood goes on along its tangent
_LEAST = 1e-6  # the chance of a level that a candidate could not send
_WHOLE = 1e-3  # how far a level may be from a whole number, in single precision
_SENT = 1e-4  # how exactly a reading shows the scale, relative


@dataclass(frozen=True, slots=True, kw_only=True)
class StochasticLevels(Transform):
    """g → τ·m, m = ⌊g/τ⌋ plus 1 with probability p = g/τ - ⌊g/τ⌋: unbiased, independent per coordinate, variance τ²·p(1
    - p).

    τ: a step for each tensor of each row, ‖g‖₂/s (`l2`) or max|g|/s (`max`).  Rounding the signed number has the same
    distribution as sign(g)·ξ, with ξ for |g|/τ.
    """

    random: ClassVar[bool] = True

    levels: int | None
    """s; None: √n for a tensor with n coordinates."""
    norm: Literal["l2", "max"]
    clip: float | None = None
    """c: first limit each coordinate to ±c standard deviations of its tensor; tensors with deviation 0 are
    unlimited."""

    def __post_init__(self) -> None:
        if self.levels is not None:
            at_least("levels", self.levels, 1)
        if self.clip is not None:
            positive("clip", self.clip)

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        sent = {}
        for name, tensor in self._limited(tensors, context.lead).items():
            tau = broadcast(self._step(tensor, context.lead), tensor)
            level = tensor / _nonzero(tau)
            below = level.floor()
            sent[name] = tau * (below + (context.draws.uniform(name, tensor) < level - below).to(tensor))
        return sent

    def expected(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        """The candidate after the clip."""
        return self._limited(tensors, context.lead), state

    def log_likelihood(self, tensors: Tensors, observed: Tensors, context: Context) -> Tensor:
        """log(1 - |g/τ - m|), summed over the reading's levels m with its step τ.

        For gradient search: beyond .9 the tangent continues, so a candidate that cannot have sent m still has a
        derivative. `log_density` adds the scale's information on the candidate's norm.
        """
        total = None
        for name, tensor in tensors.items():
            apart, _ = self._apart(tensor, observed[name].detach(), context.lead)
            chance = (1 - apart.clamp_max(_STEEP)).log() - (apart - _STEEP).clamp_min(0) / (1 - _STEEP)
            total = chance.sum(-1) if total is None else total + chance.sum(-1)
        assert total is not None
        return total

    def log_density(self, tensors: Tensors, observed: Tensors, context: Context) -> Tensor:
        """`log_likelihood` without the tangent, plus the scale, which is sent with the levels: another scale excludes a
        candidate. Impossible levels count log 10⁻⁶ each."""
        total = None
        for name, tensor in tensors.items():
            apart, off = self._apart(tensor, observed[name].detach(), context.lead)
            each = (1 - apart).clamp_min(_LEAST).log().sum(-1) - 0.5 * (off / _SENT).square()
            total = each if total is None else total + each
        assert total is not None
        return total

    def variance_at(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        """τ²·p(1 - p)."""
        variances = {}
        for name, tensor in self._limited(tensors, context.lead).items():
            tau = broadcast(self._step(tensor, context.lead), tensor)
            level = tensor / _nonzero(tau)
            chance = level - level.floor()
            variances[name] = tau.square() * chance * (1 - chance)
        return variances

    def noise(self, context: Context, state: State) -> AddedNoise:
        """At most τ²/4.  τ is secret before the reading: assumed twice the largest τ among public examples' gradients,
        or 1 without public data; a larger update exceeds this bound.

        `log_likelihood` and `log_density` read τ from the reading instead.
        """
        del state
        steps = self._public_steps(context)
        if steps is None:
            return AddedNoise(variance=0.25, bound=True)
        return AddedNoise(variance={name: tau.square() / 4 for name, tau in steps.items()}, bound=True)

    def _limited(self, tensors: Tensors, lead: int) -> dict[str, Tensor]:
        if self.clip is None:
            return dict(tensors)
        limited = {}
        for name, tensor in tensors.items():
            flat = rows(tensor, lead).detach()
            limit = self.clip * flat.std(-1, correction=0)
            bound = broadcast(limit.where(limit > 0, torch.inf), tensor)
            limited[name] = torch.minimum(torch.maximum(tensor, -bound), bound)
        return limited

    def _step(self, tensor: Tensor, lead: int) -> Tensor:
        """τ, (*lead,)."""
        flat = rows(tensor, lead)
        scale: Tensor = torch.linalg.vector_norm(flat, ord=2 if self.norm == "l2" else torch.inf, dim=-1)
        return scale / self._count(flat.shape[-1])

    def _count(self, coordinates: int) -> int:
        return max(1, round(math.sqrt(coordinates))) if self.levels is None else self.levels

    def _apart(self, tensor: Tensor, observed: Tensor, lead: int) -> tuple[Tensor, Tensor]:
        """g/τ - m| with the reading's τ, (*lead, coordinate), and the relative deviation of the candidate's τ,
        (*lead,)."""
        flat, seen = rows(tensor, lead), rows(observed, lead)
        tau = self._shown_step(seen, self._count(flat.shape[-1]))
        nothing = tau == 0  # a row of zeros was sent: it had no scale
        unit = tau.where(~nothing, 1.0)
        apart = ((flat - seen) / unit[..., None]).abs()
        own = self._step(tensor.detach(), lead)
        return apart, own / unit - (~nothing).to(own)

    def _shown_step(self, seen: Tensor, levels: int) -> Tensor:
        """Step τ shown by a reading, (*lead,): the largest τ that divides all magnitudes; 0 for zeros.

        Levels are integers, so τ is the least magnitude over 1, 2, …  A small tensor may hold only multiples of 2 or 3;
        its step is then overestimated.
        """
        magnitudes = seen.abs()
        least = magnitudes.where(magnitudes > 0, torch.inf).amin(-1)
        present = least.isfinite()
        least = least.where(present, 1.0)
        ratios = magnitudes / least[..., None]
        found = torch.ones_like(least)
        left = present
        for divisor in range(1, levels + 1):
            multiples = ratios * divisor
            whole = ((multiples - multiples.round()).abs() <= _WHOLE * multiples.clamp_min(1)).all(-1)
            found = torch.where(left & whole, float(divisor), found)
            left = left & ~whole
            if not bool(left.any()):
                break
        return (least / found).where(present, 0.0)

    def _public_steps(self, context: Context) -> dict[str, Tensor] | None:
        """`_MARGIN` times the largest τ among public examples' gradients, in stage units, name → (); None without
        public examples."""
        gradients = public_gradients(context)
        if gradients is None:
            return None
        unit = 1.0
        if context.stage in UPDATE_STAGES and context.setting.weight_step == 1:
            unit = context.setting.rate * context.setting.steps  # w_0 - w_L, about η·L gradients
        limited = self._limited(gradients, 1)
        return {name: _MARGIN * unit * self._step(value, 1).amax(0) for name, value in limited.items()}


def public_gradients(context: Context) -> Mapping[str, Tensor] | None:
    """Gradients for a few public examples at the round's weights, name → (example, *shape); None without public
    examples."""
    public = context.setting.public
    if public is None or not len(public.inputs):
        return None
    weights = dict(context.weights or public.weights)
    like = next(iter(weights.values()))
    inputs = public.inputs[:_EXAMPLES].to(like)
    targets = one_hot(public.labels[:_EXAMPLES].to(like.device), public.classes, like.dtype)
    return {name: value.detach() for name, value in example_gradients(public.model, weights, inputs, targets).items()}


def _nonzero(value: Tensor) -> Tensor:
    """The value, or 1 for 0."""
    return value.where(value != 0, 1.0)
