"""Variance-based compression: send a coordinate once its gradient is unambiguous."""

from dataclasses import dataclass

from bench.defenses.base import Defense, Setting, StageTransforms
from bench.defenses.strength import Strength
from bench.defenses.transforms.unambiguous import SendUnambiguous
from bench.parameters import parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceBased(Defense):
    """Compress by delay: hold a coordinate back until its accumulated gradient r is large against its variance v, r² >
    α·v. r sums the batches' mean gradients since the last sending. v sums Σ_z (g_z/B)² over their examples z, with the
    gradient g_z and the batch size B; each step without sending multiplies v by ζ.

    With B = 1, v = r² in a client's first step: for α < 1 every coordinate is sent, as without a defense; for α ≥ 1
    none is sent, and a first round's reading (observed update) is all zeros. Hence single examples say little about
    this defense. A single example's gradient, at type-2, is not compressed.

    Departures: the paper encodes sent values in 4 bits, here values are unencoded. Every local step is an iteration: L
    = 1 is the paper's method, and with L > 1 local steps a client trains on its delayed gradients."""

    reference = "Tsuzuku et al. 2018, ICLR workshop, §4, algorithm 1"
    stages = ("step",)
    strength = Strength("threshold", 0.1, 100.0)

    threshold: float = parameter(
        1.0, "α, least r² for sending, in units of v; 1 to 2 in the paper", source="Tsuzuku et al. 2018 §6", low=0
    )
    decay: float = parameter(
        0.999, "ζ, decay of v in a step without sending", source="Tsuzuku et al. 2018 §6", low=0, high=1
    )

    def transforms(self, setting: Setting) -> StageTransforms:
        return {"step": (SendUnambiguous(threshold=self.threshold, decay=self.decay),)}
