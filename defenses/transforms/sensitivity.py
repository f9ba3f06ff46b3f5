"""Noise with a deviation that follows the gradient norms instead of their bound (Fed-αCDP's l2-max sensitivity)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bench.defenses.base import AddedNoise, Context, Scaling, Setting, State, Tensors
from bench.defenses.ranges import at_least
from bench.defenses.schedules import Schedule, value_at
from bench.defenses.transforms.clip import Clip, clip_factors
from bench.defenses.transforms.noise import Additive
from bench.defenses.transforms.rows import norms, rescaled
from bench.gradients import example_gradients, one_hot

Measure = Literal["max", "mean-of-largest"]
FLOOR, CAP = 0.1, 32.0  # limits in the authors' code
_PUBLIC = 64  # public examples for S before a training, or a batch where it is larger


@dataclass(frozen=True, slots=True, kw_only=True)
class SensitivityNoise(Additive):
    """Add noise N(0, σ²S²) whose scale S follows the gradient norms in a client's batch in place of their bound, so
    that noise is smaller (Fed-αCDP §5.1).

    At stage `example` each example gets noise. At stage `step` their mean gets noise with deviation `share`·σ·S, where
    S comes from the examples before averaging. S depends on the data, so no accountant's ε covers the noise. Attackers
    know the variance for S = `bound`, as an upper bound."""

    batchwise: ClassVar[bool] = True

    multiplier: float | Schedule
    """σ, a number or a schedule over time."""
    bound: float
    """C, the largest possible S."""
    measure: Measure = "max"
    """`max`: S is the largest tensor norm in the batch. `mean-of-largest`: S is the mean over examples of each
    example's largest tensor norm, limited to [.1, 32] (the authors' code)."""
    share: float = 1.0
    """Factor on the noise deviation at stage `step`, such as 1/B for noise divided by the batch size B."""
    by: Literal["round", "step"] = "round"
    """Unit of time for a schedule of σ: rounds or local steps."""

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        if context.stage == "example":
            return rescaled(tensors, self.by_norms(norms(tensors, context.lead), context), context)
        if context.norms is None:
            raise ValueError(f"noise by sensitivity needs the examples' norms; stage {context.stage} has none")
        size = self._sigma(context) * self.share * self._sensitivity(context.norms)
        return rescaled(tensors, Scaling({}, size), context)

    def by_norms(self, norms: Tensors, context: Context) -> Scaling:
        """Return the transform in its fast form for trainings: noise with deviation σ·S on each example, and factors of
        1 (no clipping). σ is the noise multiplier; the scale S follows from `norms`, the tensors' norms for each
        example: name → (client, example). `context`: place in the training, with the time for a schedule."""
        first = next(iter(norms.values()))
        size = self._sigma(context) * self._sensitivity(norms)
        return Scaling({}, size[:, None].expand(first.shape))

    @property
    def steady(self) -> bool:
        return self.by == "round"

    def noise(self, context: Context, state: State) -> AddedNoise:
        """Return the noise that attackers assume: the largest possible variance σ²S², for S = `bound`. The actual scale
        S follows from the gradient norms in the batch. `context`: place in the training; `state` is not used."""
        return AddedNoise(variance=(self._sigma(context) * self.share * self.bound) ** 2, bound=True)

    def log_density(self, tensors: Tensors, observed: Tensors, context: Context) -> Tensor | None:
        """Rank candidates: return the log density of the attacked reading `observed` under each candidate g in
        `tensors`, for each row. The density is N(g, σ²S²), with the noise multiplier σ and the scale S computed from
        the norms of g. None for batches with several examples, because S depends on all of them. `context`: place in
        the training."""
        if context.setting.batch > 1:
            return None
        own = {name: value.reshape(len(value), 1) for name, value in norms(tensors, context.lead).items()}
        variance = (self._sigma(context) * self.share * self._sensitivity(own)) ** 2
        squares = sum(
            (observed[name] - value).double().square().flatten(context.lead).sum(-1).reshape(len(value))
            for name, value in tensors.items()
        )
        count = sum(value[(0,) * context.lead].numel() for value in tensors.values())
        density = -squares / (2 * variance) - count / 2 * variance.log()
        return density.reshape(next(iter(tensors.values())).shape[: context.lead])

    def _sensitivity(self, norms: Tensors) -> Tensor:
        return scale_of(norms, self.measure)

    def _sigma(self, context: Context) -> float:
        steps = context.setting.steps
        at = context.round if self.by == "round" else context.round * steps + context.step
        return at_least("noise multiplier", value_at(self.multiplier, at))


def scale_of(norms: Tensors, measure: Measure) -> Tensor:
    """Return the noise scale S of each batch, (client,), from the examples' tensor `norms`, name → (client, example).
    `measure`: rule for S, as in `SensitivityNoise`."""
    largest = torch.stack(tuple(norms.values())).amax(0)
    return largest.amax(1) if measure == "max" else largest.mean(1).clamp(FLOOR, CAP)


def public_sensitivity(setting: Setting, clip: Clip, measure: Measure) -> float | None:
    """Return S_dyn, the noise scale S before a training: the mean over batches of public examples, from their clipped
    gradients at the initial weights. None without public examples.

    - `setting`: the federated setting, with the public examples and the batch size.
    - `clip`: clip of an example's gradient, with a constant bound.
    - `measure`: rule for S, as in `SensitivityNoise`."""
    public = setting.public
    batches = 0 if public is None else min(len(public.inputs), max(_PUBLIC, setting.batch)) // setting.batch
    if public is None or not batches:
        return None
    count = batches * setting.batch
    weights = dict(public.weights)
    inputs = public.inputs[:count].to(next(iter(weights.values())))
    targets = one_hot(public.labels[:count].to(inputs.device), public.classes, inputs.dtype)
    gradients = example_gradients(public.model, weights, inputs, targets)
    sizes = {name: value.unflatten(0, (batches, setting.batch)) for name, value in norms(gradients, 1).items()}
    assert not callable(clip.bound)
    factors = clip_factors(sizes, clip.bound, clip.per)
    return float(scale_of({name: size * factors[name] for name, size in sizes.items()}, measure).mean())
