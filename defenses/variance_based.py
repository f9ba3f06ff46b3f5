"""Variance-based compression: a coordinate is sent once its gradient is unambiguous."""

from dataclasses import dataclass

from bench.defenses.base import Defense, Setting, StageTransforms
from bench.defenses.transforms.unambiguous import SendUnambiguous
from bench.parameters import parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceBased(Defense):
    """Hold a coordinate back until r² > α·v: r is the sum of the batches' mean gradients since it was last sent, v the
    sum of Σ_z (g_z/B)² over their examples z, decayed by ζ at each step that does not send.

    With one example in a batch v = r² in a client's first step: for α < 1 everything is sent, as without a defense, for
    α ≥ 1 nothing at all, so that a first round's reading is all zeros.  Single examples therefore say little of it.
    Departures: the paper encodes what it sends in 4 bits, here values are sent as they are; every local step is one
    iteration of it, so that with L = 1 it is the paper's, and with more a client trains on its own delayed gradients.
    One example's gradient, at type-2, is not compressed.
    """

    reference = "Tsuzuku et al. 2018, ICLR workshop, §4, algorithm 1"
    stages = ("step",)

    threshold: float = parameter(
        1.0, "α, how large r² must be in units of v; 1 to 2 in the paper", source="Tsuzuku et al. 2018 §6", low=0
    )
    decay: float = parameter(
        0.999, "ζ, of v in a step that does not send", source="Tsuzuku et al. 2018 §6", low=0, high=1
    )

    def transforms(self, setting: Setting) -> StageTransforms:
        del setting
        return {"step": (SendUnambiguous(threshold=self.threshold, decay=self.decay),)}
