"""Random perturbation of slices with equal leakage risk, with global compensation (the paper Risk-balanced)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from bench.defenses.base import Defense, Public, Setting, StageTransforms, Transform
from bench.defenses.risk import equal_risk, equal_size, layer_risks, root_set
from bench.defenses.strength import Strength
from bench.defenses.transforms.clip import Clip
from bench.defenses.transforms.compensate import Compensate
from bench.defenses.transforms.slices import SliceNoise
from bench.parameters import parameter
from bench.points import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskBalanced(Defense):
    """Add noise to a few parts of each update: the update is cut into s slices with equal leakage risk; each client
    adds noise N(0, σ²) to max(1, ⌊sγ⌋) random slices, with a new choice in each round. The server removes the part of
    the mean that random-matrix theory classes as noise. A layer's risk measures the change of its gradient with the
    example, on a small public root set, at the initial weights of the training or attack. By default (`clip` = 0) no
    bound limits a client's effect; the harness computes no ε. An attacker who ignores the worst-fitting slices recovers
    the information in the other slices (RESULTS.md)."""

    reference = "Risk-balanced §4, §5, algorithm 1"
    stages = ("client", "aggregate")
    strength = Strength("variance", 1e-8, 1e2)

    variance: float = parameter(
        1e-2, "σ², noise variance", unit="of the update, squared", source="Risk-balanced §6", low=0
    )
    share: float = parameter(
        0.2, "γ, share of noised slices: .2 for DGA, .3 for GIA", source="Risk-balanced §6", low=0, high=1
    )
    slices: int = parameter(20, "s, number of slices", source="ours", low=1)
    slicing: Literal["risk", "size"] = parameter(
        "risk", "quantity divided equally among slices", source="Risk-balanced Table III"
    )
    root: int = parameter(100, "public examples in the root set", source="Risk-balanced Table III", low=1)
    root_bias: float = parameter(
        0.0, "root set share from a single class; 0: as drawn", source="Risk-balanced Table III", low=0, high=1
    )
    directions: int = parameter(8, "random directions per risk measurement", source="ours", low=1)
    clip: float = parameter(
        0.0,
        "B, bound on the norm of an update, with noise σB; 0: neither",
        unit="of the update",
        source="Risk-balanced §5C",
        low=0,
    )
    compensation: bool = parameter(True, "whether the server compensates", source="Risk-balanced §5")
    quotient: float = parameter(
        10.0, "Q = v/w, rows over columns of the mean as a matrix", source="Risk-balanced Table III", low=1
    )
    tolerance: float = parameter(0.2, "widening of the noise interval, at both edges", source="ours", low=0, high=0.99)

    def transforms(self, setting: Setting) -> StageTransforms:
        count = max(1, math.floor(self.slices * self.share))
        deviation = math.sqrt(self.variance) * (self.clip or 1.0)
        noise = SliceNoise(ends=self._ends(setting), count=count, deviation=deviation)
        clip = (Clip(bound=self.clip, per="flat"),) if self.clip else ()
        chosen: dict[Stage, Sequence[Transform]] = {"client": (*clip, noise)}
        if self.compensation:
            # for a mean with weights 1/K; the printed formula is K² times larger
            of_mean = count / self.slices * deviation**2 / setting.per_round
            chosen["aggregate"] = (Compensate(variance=of_mean, quotient=self.quotient, tolerance=self.tolerance),)
        return chosen

    def _ends(self, setting: Setting) -> tuple[int, ...]:
        public = setting.public
        if public is None or not len(public.inputs):
            raise ValueError("risk is measured on public examples, and there are none")
        if self.slicing == "size":
            return equal_size(public.weights, self.slices)
        risks = _risks(public, examples=self.root, bias=self.root_bias, directions=self.directions)
        return equal_risk(public.weights, risks, self.slices)


@lru_cache(maxsize=4)  # all strengths of a setting share the risks, which take seconds
def _risks(public: Public, *, examples: int, bias: float, directions: int) -> dict[str, float]:
    return layer_risks(root_set(public, examples=examples, bias=bias), directions=directions)
