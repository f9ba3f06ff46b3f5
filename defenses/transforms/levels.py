"""Stochastic rounding: each coordinate becomes a random multiple of a step size, without bias."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bench.defenses.base import AddedNoise, Context, Quantised, State, Tensors, Transform
from bench.defenses.ranges import at_least, positive
from bench.defenses.transforms.rows import broadcast
from bench.gradients import example_gradients, one_hot
from bench.points import UPDATE_STAGES
from bench.rows import rows
from bench.trip import Outcomes

_EXAMPLES = 16  # public examples whose gradients show the usual step size
_MARGIN = 2.0  # factor on the largest of their step sizes
_STEEP = 0.9  # distance, in steps, beyond which the likelihood follows its tangent
_LEAST = 1e-6  # probability assumed for a level which a candidate cannot send
_WHOLE = 1e-3  # tolerance for an integer level in single precision
_SENT = 1e-4  # relative precision of a level in a reading


@dataclass(frozen=True, slots=True, kw_only=True)
class StochasticLevels(Transform):
    """Quantise by random rounding without bias: each coordinate g becomes τ·⌊g/τ⌋ or τ·(⌊g/τ⌋ + 1). The upper value has
    probability p = g/τ - ⌊g/τ⌋; coordinates are independent, with variance τ²·p(1 - p). The step τ of each tensor g of
    a client or an example is ‖g‖₂/s (`l2`) or max|g|/s (`max`), with s = `levels`. Rounding signed numbers gives the
    same distribution as the papers' sign(g)·ξ, with ξ a rounding of |g|/τ."""

    random: ClassVar[bool] = True

    levels: int | None
    """s, the number of magnitudes above 0 to which a coordinate may be rounded; None: √n for a tensor with n
    coordinates."""
    norm: Literal["l2", "max"]
    """Norm of a tensor that sets its step τ: `l2` (‖g‖₂) or `max` (max|g|)."""
    clip: float | None = None
    """c: coordinates are first limited to ±c standard deviations of their tensor (no limit for deviation 0). None: no
    limit."""

    def __post_init__(self) -> None:
        if self.levels is not None:
            at_least("levels", self.levels, 1)
        if self.clip is not None:
            positive("clip", self.clip)

    @property
    def quantises(self) -> Quantised:
        return "ternary" if self.levels == 1 else "levels"

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        return {
            name: tau * (below + (context.draws.uniform(name, tau) < chance).to(chance))
            for name, (tau, below, chance) in self._levels(tensors, context).items()
        }

    def expected(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        """Return the transform's output for an attacker's candidate gradients `tensors`, averaged over the random
        rounding, and the unchanged `state`: the candidates after the limit `clip`, because rounding is unbiased.
        `context`: place in the training."""
        return self._limited(tensors, context.lead), state

    def log_likelihood(self, tensors: Tensors, observed: Tensors, context: Context) -> Tensor:
        """Score candidates by the log likelihood of the rounded values in the attacked reading `observed`, for each row
        (client or example) of the candidates `tensors`: log(1 - |g/τ - m|), summed over coordinates. g is the
        candidate's coordinate; m is the reading's integer level at that coordinate, and τ the reading's step.
        `context`: place in the training.

        Above |g/τ - m| = 0.9 the function continues along its tangent: a gradient search then has a derivative also for
        a candidate that cannot have sent m. Only `log_density` uses the information that τ gives on the candidate's
        norm. If a small tensor shows a multiple of τ, the result overestimates the likelihood."""
        total = None
        for name, tensor in tensors.items():
            flat, seen = rows(tensor, context.lead), rows(observed[name].detach(), context.lead)
            tau = _nonzero(self._shown_step(seen, self._count(flat.shape[-1])))  # a row of zeros shows no step
            apart = ((flat - seen) / tau[..., None]).abs()
            chance = (1 - apart.clamp_max(_STEEP)).log() - (apart - _STEEP).clamp_min(0) / (1 - _STEEP)
            total = chance.sum(-1) if total is None else total + chance.sum(-1)
        assert total is not None
        return total

    def log_density(self, tensors: Tensors, observed: Tensors, context: Context) -> Tensor:
        """Rank candidates exactly: return the log probability of the attacked reading `observed` under each candidate
        in `tensors`, for each row (client or example). The value is `log_likelihood` without continuation along the
        tangent, with the candidate's own step as τ. A term excludes candidates whose step does not divide the reading:
        the largest distance from a whole level, relative to the level, divided by 10⁻⁴, squared and halved. A level
        that the candidate cannot send counts log 10⁻⁶. `context`: place in the training."""
        total = None
        for name, tensor in tensors.items():
            flat, seen = rows(tensor, context.lead), rows(observed[name].detach(), context.lead)
            step = self._step(tensor.detach(), context.lead)
            tau = _nonzero(step)[..., None]
            shown = seen / tau
            level = shown.round()
            off = ((shown - level).abs() / level.abs().clamp_min(1)).amax(-1)
            off = torch.where((step == 0) & (seen != 0).any(-1), 1.0, off)
            chance = (1 - (flat / tau - level).abs()).clamp_min(_LEAST)
            each = chance.log().sum(-1) - 0.5 * (off / _SENT).square()
            total = each if total is None else total + each
        assert total is not None
        return total

    def variance_at(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        """Return the exact variance of the rounding error of each coordinate g in `tensors`: τ²·p(1 - p), name →
        (*lead, *shape), with the leading axes *lead. τ is the step, and p the fractional part of g/τ. `context`: place
        in the training."""
        levels = self._levels(tensors, context)
        return {name: tau.square() * chance * (1 - chance) for name, (tau, _, chance) in levels.items()}

    def outcomes(self, tensors: Tensors, context: Context) -> Outcomes:
        """Return the two values that an attacker must consider for each coordinate of `tensors`, with their
        probabilities: the adjacent multiples of the step τ below and above the coordinate. `context`: place in the
        training."""
        levels = self._levels(tensors, context)
        return Outcomes(
            values={name: torch.stack([tau * below, tau * (below + 1)]) for name, (tau, below, _) in levels.items()},
            chances={name: torch.stack([1 - chance, chance]) for name, (_, _, chance) in levels.items()},
        )

    def noise(self, context: Context, state: State) -> AddedNoise:
        """Return the noise that an attacker assumes before a reading (observed update): the upper bound τ²/4 on the
        rounding variance. The step τ is then unknown: the bound takes twice the largest τ among public examples'
        gradients, or τ = 1 without public data. A larger update exceeds the bound. `log_likelihood` and `log_density`
        need no bound. `context` is the place in the training, with the public data; `state` is not
        used."""
        steps = self._public_steps(context)
        if steps is None:
            return AddedNoise(variance=0.25, bound=True)
        return AddedNoise(variance={name: tau.square() / 4 for name, tau in steps.items()}, bound=True)

    def _levels(self, tensors: Tensors, context: Context) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
        """Return (step τ, lower level ⌊g/τ⌋, probability of the upper level) of each coordinate, in the shape of
        `tensors`."""
        levels = {}
        for name, tensor in self._limited(tensors, context.lead).items():
            tau = broadcast(self._step(tensor, context.lead), tensor)
            level = tensor / _nonzero(tau)
            below = level.floor()
            levels[name] = tau.expand_as(tensor), below, level - below
        return levels

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
        flat = rows(tensor, lead)
        scale: Tensor = torch.linalg.vector_norm(flat, ord=2 if self.norm == "l2" else torch.inf, dim=-1)
        return scale / self._count(flat.shape[-1])

    def _count(self, coordinates: int) -> int:
        return max(1, round(math.sqrt(coordinates))) if self.levels is None else self.levels

    def _shown_step(self, seen: Tensor, levels: int) -> Tensor:
        """Return the step τ that a reading `seen` shows, (*lead,): the largest τ that divides all magnitudes. Levels
        are integers up to `levels`, so τ is the least magnitude divided by 1, 2, … A row of zeros has τ = 0. If a small
        tensor holds only multiples of 2 or 3, the result overestimates τ."""
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
        """Return a step size for each tensor: `_MARGIN` times the largest step size among public examples' gradients.
        The result is None without public data."""
        gradients = public_gradients(context)
        if gradients is None:
            return None
        unit = 1.0
        if context.stage in UPDATE_STAGES and context.setting.weight_step == 1:
            unit = context.setting.rate * context.setting.steps  # w_0 - w_L, about η·L gradients
        limited = self._limited(gradients, 1)
        return {name: _MARGIN * unit * self._step(value, 1).amax(0) for name, value in limited.items()}


def public_gradients(context: Context) -> Mapping[str, Tensor] | None:
    """Return the gradients of a few public examples at the round's weights, name → (example, *shape), from which
    attackers estimate a gradient's usual size; None without public data. `context`: place in the training, with weights
    and public data."""
    public = context.setting.public
    if public is None or not len(public.inputs):
        return None
    weights = dict(context.weights or public.weights)
    like = next(iter(weights.values()))
    inputs = public.inputs[:_EXAMPLES].to(like)
    targets = one_hot(public.labels[:_EXAMPLES].to(like.device), public.classes, like.dtype)
    return {name: value.detach() for name, value in example_gradients(public.model, weights, inputs, targets).items()}


def _nonzero(value: Tensor) -> Tensor:
    return value.where(value != 0, 1.0)
