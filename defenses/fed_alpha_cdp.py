"""Fed-αCDP: Fed-CDP with noise scaled to the batch's largest norm, and a decaying multiplier."""

import math
from dataclasses import dataclass
from typing import Literal

from bench.defenses.accounting.mechanism import Mechanism
from bench.defenses.base import Defense, Setting, StageTransforms
from bench.defenses.fed_cdp import PLACEMENTS, Noise, divisor, of_examples
from bench.defenses.schedules import AsPublished, Constant, Cyclic, Exponential, Linear, Schedule, Staircase
from bench.defenses.strength import Strength
from bench.defenses.transforms.clip import Clip
from bench.defenses.transforms.sensitivity import SensitivityNoise, public_sensitivity
from bench.parameters import parameter

Decay = Literal["none", "linear", "staircase", "exponential", "cyclic", "as-published"]
_SOURCE = "Fed-αCDP"


@dataclass(frozen=True, slots=True, kw_only=True)
class FedAlphaCdp(Defense):
    """Clip each tensor of each example gradient to C, and add noise σ·S that follows the batch: S ≤ C is the largest
    norm in the batch. The noise is at most as large as in `fed-cdp`, but no accountant covers the data-dependent S: the
    paper claims ε as if S = C.

    - `decay` (Fed-αCDP[σ]): σ falls during training, to `final` after T rounds. The paper gives no constants for its
      decays; `as-published` follows the authors' accounting script.
    - `noise`: placement as in `fed-cdp`: on each example, on the mean (`batch`), or on the mean and divided by the
      batch size B (`code`) and by √K (`share`)."""

    reference = "Fed-αCDP §5.1 to §5.3"
    stages = ("example", "step")
    strength = Strength("sigma", 1e-3, 1e2)

    clip: float = parameter(
        4.0, "C, bound on the norm of an example's gradient", unit="of the gradient", source=f"{_SOURCE}, §7", above=0
    )
    sigma: float = parameter(6.0, "σ, or σ_0 with a decay", source=f"{_SOURCE}, §7", low=0)
    decay: Decay = parameter("none", "decay of σ", source=f"{_SOURCE}, §5.3")
    final: float = parameter(4.85, "σ after T rounds, of linear, staircase, exponential", source="ours", low=0)
    every: int = parameter(10, "Γ, rounds between two stairs", source="ours", low=1)
    cycles: int = parameter(1, "c, of the cyclic decay", source="ours", low=1)
    by: Literal["round", "step"] = parameter(
        "round", "unit of the decay; the authors' code: local steps", source=f"{_SOURCE}, §5.3"
    )
    noise: Noise = parameter("per-example", PLACEMENTS, source=f"{_SOURCE}, §5.2")
    clipping: Literal["per-tensor", "flat"] = parameter(
        "per-tensor", "each tensor by its norm, or all by their joint norm", source=_SOURCE
    )
    measure: Literal["max", "mean-of-largest"] = parameter(
        "max", "S: of the whole batch, or the authors' code's mean over examples", source=f"{_SOURCE}, §5.1"
    )

    resilient: float | None = parameter(
        None, "σ', the rule σ_0 ≥ Cσ'/S_dyn; none: σ_0 = σ", source=f"{_SOURCE}, §5.3, (1)", low=0, added=True
    )

    def transforms(self, setting: Setting) -> StageTransforms:
        clip = self._clip()
        share = 1 / divisor(self.noise, setting)
        noise = SensitivityNoise(
            multiplier=self.schedule(setting), bound=self.clip, measure=self.measure, share=share, by=self.by
        )
        if self.noise == "per-example":
            return {"example": (clip, noise)}
        return {"example": (clip,), "step": (noise,)}

    def mechanism(self, setting: Setting) -> Mechanism:
        schedule, by_step = self.schedule(setting), self.by == "step"
        count = setting.rounds * (setting.steps if by_step else 1)
        return of_examples(
            tuple(schedule(t) for t in range(count)),
            setting,
            noise=self.noise,
            by_step=by_step,
            per_tensor=self.clipping == "per-tensor",
            caveats=("as if the noise's scale S ≤ C were C",),
            unproved="the noise's scale S ≤ C is the data's own: the noise tells S, and no ε is proved",
        )

    def schedule(self, setting: Setting) -> Schedule:
        """Return the noise multiplier σ over time: a function of the round, or of the local step if `by` is "step".
        `setting`: the federated setting, with the numbers of rounds and steps. Raises `ValueError` if `final` is above
        the first σ, or 0 with the exponential decay; with `resilient` also for the decay `as-published`, and without
        public examples."""
        count = setting.rounds * (setting.steps if self.by == "step" else 1)
        if self.decay == "as-published":
            if self.resilient is not None:
                raise ValueError("resilient sets the first σ, and decay=as-published has its own; take another decay")
            return AsPublished(steps=count)
        first = self.first(setting)
        if self.decay == "cyclic":
            return Cyclic(initial=first, rounds=count, cycles=self.cycles)
        fall = 1 - self.final / first if first else 0.0
        if self.decay != "none" and fall < 0:
            raise ValueError(f"final must be at most sigma={first:g} with a decay, got {self.final:g}")
        if self.decay == "linear":
            return Linear(initial=first, slope=fall / count)
        if self.decay == "exponential":
            if not self.final or not first:
                raise ValueError("sigma and final must be above 0 with the exponential decay")
            return Exponential(initial=first, decay=math.log(first / self.final) / count)
        if self.decay == "staircase":
            every = min(self.every, count)
            return Staircase(initial=first, drop=fall * every / count, every=every)
        return Constant(value=first)

    def first(self, setting: Setting) -> float:
        """Return σ_0, the first noise multiplier: `sigma`, or Cσ'/S_dyn if this is larger, with σ' = `resilient`. S_dyn
        is the mean of S over batches of public examples in `setting`, at the initial weights. Raises `ValueError`
        without public examples if `resilient` is set."""
        if self.resilient is None:
            return self.sigma
        size = public_sensitivity(setting, self._clip(), self.measure)
        if size is None:
            raise ValueError("resilient measures S_dyn on public examples, and this training has none")
        return max(self.sigma, self.clip * self.resilient / size) if size else self.sigma

    def _clip(self) -> Clip:
        return Clip(bound=self.clip, per="tensor" if self.clipping == "per-tensor" else "flat")
