"""Fed-CDP: example-level differential privacy, by noise inside local training."""

import math
from dataclasses import dataclass
from typing import Literal

from bench.defenses.accounting.mechanism import Mechanism
from bench.defenses.base import Defense, Setting, StageTransforms
from bench.defenses.strength import Strength
from bench.defenses.transforms.clip import Clip
from bench.defenses.transforms.noise import GaussianNoise
from bench.parameters import parameter
from bench.points import UPDATE_STAGES, Stage

Noise = Literal["per-example", "batch", "code", "share"]
PLACEMENTS = "noise placement: §5.2, algorithm 1 (line 19), the authors' code, or `code` shared by all clients"


@dataclass(frozen=True, slots=True, kw_only=True)
class FedCdp(Defense):
    """Clip each example gradient to C, and add Gaussian noise with multiplier σ in every local step. Noise has four
    placements, for batch size B and K clients in a round:

    - `per-example`: N(0, σ²C²) on each example.
    - `batch`: N(0, σ²C²) on the mean of the examples.
    - `code`: N(0, σ²C²/B²) on the mean, which equals DP-SGD and has the accountants' ε for σ.
    - `share`: N(0, σ²C²/(B²K)) on the mean. The sum over all clients carries N(0, σ²C²): for a single local step behind
      secure aggregation, the B·K examples are a lot of DP-SGD.

    With `batch`, `code` and `share` a single example's gradient, at type-2, is only clipped. The sensitivity is √M·C if
    each of M tensors is clipped separately, and C with flat clipping."""

    reference = "Wei et al. 2021 (Fed-CDP); Fed-αCDP §4.2, §5.2 and algorithm 1"
    stages = ("example", "step")
    strength = Strength("sigma", 1e-3, 1e2)

    clip: float = parameter(
        4.0, "C, bound on the norm of an example's gradient", unit="of the gradient", source="Fed-αCDP §7", above=0
    )
    sigma: float = parameter(6.0, "σ, noise multiplier", source="Fed-αCDP §7", low=0)
    noise: Noise = parameter("per-example", PLACEMENTS, source="Fed-αCDP §5.2")
    clipping: Literal["per-tensor", "flat"] = parameter(
        "per-tensor", "each tensor by its norm, or all by their joint norm", source="Fed-αCDP"
    )

    def transforms(self, setting: Setting) -> StageTransforms:
        clip = Clip(bound=self.clip, per="tensor" if self.clipping == "per-tensor" else "flat")
        whole = self.sigma * self.clip
        if self.noise == "per-example":
            return {"example": (clip, GaussianNoise(deviation=whole))}
        return {"example": (clip,), "step": (GaussianNoise(deviation=whole / divisor(self.noise, setting)),)}

    def mechanism(self, setting: Setting) -> Mechanism:
        return of_examples(
            (self.sigma,) * setting.rounds, setting, noise=self.noise, per_tensor=self.clipping == "per-tensor"
        )


def divisor(noise: Noise, setting: Setting) -> float:
    """Return the number that divides the noise deviation σC, for the placement `noise`: 1 for noise on each example or
    on the batch mean, B for `code`, and B·√K for `share`. `setting`: the federated setting, with the batch size B and
    the number K of clients in a round."""
    return {"code": setting.batch, "share": setting.batch * math.sqrt(setting.per_round)}.get(noise, 1.0)


def of_examples(
    sigmas: tuple[float, ...],
    setting: Setting,
    *,
    noise: Noise,
    per_tensor: bool,
    by_step: bool = False,
    caveats: tuple[str, ...] = (),
    unproved: str | None = None,
) -> Mechanism:
    """Return the noise and sensitivity from which accountants compute ε, for clipped and noised example gradients.

    - `sigmas`: noise multipliers σ_t, an entry for each round, or for each local step if `by_step`.
    - `setting`: the federated setting, with the batch size B and the number K of clients in a round.
    - `noise`: place of the noise. In brackets: its deviation on the sum of a batch's B gradients, each clipped to C.
      `per-example`: σC on each example (σC·√B); `batch`: σC on the batch mean (σC·B); `code`: σC/B on the batch mean
      (σC); `share`: a client's share of σC/B on the mean over clients (σC/√K).
    - `per_tensor`: True if each tensor is clipped separately.
    - `caveats`: limits of ε, in words; `unproved`: reason why no ε is proved, None if proved.

    Replacing an example moves the sum by 2C. At `aggregate` the noise of all K clients protects an example."""
    batch = setting.batch
    on_sum = batch**0.5 if noise == "per-example" else batch / divisor(noise, setting)
    alone: dict[Stage, float] = {"example": 0.5} if noise == "per-example" else {}
    after: tuple[Stage, ...] = ("step", *UPDATE_STAGES)
    return Mechanism(
        unit="example",
        sigmas=sigmas,
        released=on_sum,
        per_tensor=per_tensor,
        by_step=by_step,
        rows=alone | dict.fromkeys(after, on_sum / 2) | {"aggregate": on_sum / 2 * setting.per_round**0.5},
        caveats=caveats,
        unproved=unproved,
    )
