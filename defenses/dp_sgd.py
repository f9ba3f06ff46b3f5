"""DP-SGD: in every local step, clip example gradients and add noise to their sum."""

from dataclasses import dataclass

from bench.defenses.accounting.mechanism import Mechanism
from bench.defenses.base import Defense, Setting, StageTransforms
from bench.defenses.fed_cdp import of_examples
from bench.defenses.strength import Strength
from bench.defenses.transforms.clip import Clip
from bench.defenses.transforms.noise import GaussianNoise
from bench.parameters import parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class DpSgd(Defense):
    """Clip each example gradient to norm C over all tensors, and add N(0, σ²C²) to their sum in every local step. The
    step uses (Σ ḡ_i + N(0, σ²C²))/B with the batch size B and ḡ_i = g_i/max(1, ‖g_i‖₂/C). The defense equals
    `fed-cdp(clipping="flat", noise="code")`, with this paper's name and numbers. A single example's gradient, at
    type-2, is clipped but has no noise. Departure: the paper draws Poisson lots and divides by the expected size L.
    Here a batch has exactly B examples, and the accountants count for the fixed size."""

    reference = "Abadi et al. 2016, CCS, algorithm 1; numbers of §5.2 (MNIST, medium noise)"
    stages = ("example", "step")
    strength = Strength("sigma", 1e-3, 1e2)

    clip: float = parameter(
        4.0,
        "C, bound on the norm of an example's gradient",
        unit="of the gradient",
        source="Abadi et al. 2016 §5.2",
        above=0,
    )
    sigma: float = parameter(4.0, "σ, noise multiplier", source="Abadi et al. 2016 §5.2", low=0)

    def transforms(self, setting: Setting) -> StageTransforms:
        noise = GaussianNoise(deviation=self.sigma * self.clip / setting.batch)
        return {"example": (Clip(bound=self.clip, per="flat"),), "step": (noise,)}

    def mechanism(self, setting: Setting) -> Mechanism:
        return of_examples((self.sigma,) * setting.rounds, setting, noise="code", per_tensor=False)
