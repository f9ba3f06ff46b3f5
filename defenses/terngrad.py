"""TernGrad: send each coordinate as -1, 0 or 1 times its tensor's largest magnitude."""

from dataclasses import dataclass
from typing import Literal

from bench.defenses.base import Defense, Setting, StageTransforms
from bench.defenses.transforms.levels import StochasticLevels
from bench.parameters import parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class TernGrad(Defense):
    """Quantise each coordinate to three values: send s_t·sign(g) with probability |g|/s_t, otherwise 0; coordinates are
    first limited to ±c standard deviations. The scale s_t = max|g| over a tensor makes the result unbiased around the
    limited gradient g. Weight and bias have separate scales. Departure: clients do not agree on a common s_t (scaler
    sharing, §3.2), since clients would then depend on each other."""

    reference = "Wen et al. 2017 (TernGrad), NeurIPS, algorithm 1, §3.2 (layer-wise ternarizing, gradient clipping)"
    stages = ("example", "client")

    clip: float | None = parameter(
        2.5,
        "c, limit on a coordinate; none: unlimited",
        unit="deviations of its tensor",
        source="TernGrad §3.2",
        above=0,
    )
    at: Literal["client", "example"] = parameter(
        "client", "level: client updates or example gradients", source="TernGrad algorithm 1"
    )

    def transforms(self, setting: Setting) -> StageTransforms:
        return {self.at: (StochasticLevels(levels=1, norm="max", clip=self.clip),)}
