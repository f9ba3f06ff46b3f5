"""Noise scaled to the norms of the gradients, not to their bound: the l2-max sensitivity of Fed-αCDP."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bench.defenses.base import AddedNoise, Context, Scaling, State, Tensors
from bench.defenses.ranges import at_least
from bench.defenses.schedules import Schedule, value_at
from bench.defenses.transforms.noise import Additive
from bench.defenses.transforms.rows import norms, rescaled

Measure = Literal["max", "mean-of-largest"]
FLOOR, CAP = 0.1, 32.0  # of the authors' code


@dataclass(frozen=True, slots=True, kw_only=True)
class SensitivityNoise(Additive):
    """Add N(0, σ²S²), S from the norms of the client's batch (Fed-αCDP §5.1).

    `max`: S is the largest norm of any example's any tensor; `mean-of-largest`: the mean over examples of
    each one's largest tensor norm, within [.1, 32] (the authors' code).  At stage `example` every example is
    noised; at stage `step` their mean, by `share`·σ·S, with S of the examples before the mean.  S depends
    on the data, so that no accountant's ε covers it; attackers know the variance at S = `bound`, as a bound.
    `by` counts a schedule of σ in rounds or in local steps.
    """

    batchwise: ClassVar[bool] = True

    multiplier: float | Schedule
    bound: float
    measure: Measure = "max"
    share: float = 1.0
    by: Literal["round", "step"] = "round"

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        if context.stage == "example":
            return rescaled(tensors, self.by_norms(norms(tensors, context.lead), context), context)
        if context.norms is None:
            raise ValueError(f"noise by sensitivity needs the examples' norms; stage {context.stage} has none")
        size = self._sigma(context) * self.share * self._sensitivity(context.norms)
        return rescaled(tensors, Scaling({}, size), context)

    def by_norms(self, norms: Tensors, context: Context) -> Scaling:
        first = next(iter(norms.values()))
        size = self._sigma(context) * self._sensitivity(norms)
        return Scaling({}, size[:, None].expand(first.shape))

    def noise(self, context: Context, state: State) -> AddedNoise:
        """The largest possible variance, S at the bound; S itself depends on the batch."""
        del state
        return AddedNoise(variance=(self._sigma(context) * self.share * self.bound) ** 2, bound=True)

    def log_density(self, tensors: Tensors, observed: Tensors, context: Context) -> Tensor | None:
        """Of N(g, σ²S²) where S is the candidate's own; None in a batch, whose other examples have a part in S."""
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
        """(client,) of name → (client, example)."""
        largest = torch.stack(tuple(norms.values())).amax(0)
        return largest.amax(1) if self.measure == "max" else largest.mean(1).clamp(FLOOR, CAP)

    def _sigma(self, context: Context) -> float:
        steps = context.setting.steps
        at = context.round if self.by == "round" else context.round * steps + context.step
        return at_least("noise multiplier", value_at(self.multiplier, at))
