"""Top-k with error feedback: send the largest coordinates, remember the rest."""

from dataclasses import dataclass

from bench.defenses.base import Defense, Setting, StageTransforms
from bench.defenses.strength import Strength
from bench.defenses.transforms.feedback import RememberUnsent
from bench.parameters import parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class TopK(Defense):
    """Sparsify with error feedback: send the k largest magnitudes of m + g over the whole update g, and keep the rest
    as memory m for the next round. A client's first round has m = 0 and equals `prune` with the same share. Later
    updates carry remains from earlier examples. Only the client knows m, so attackers cannot simulate the defense in
    later rounds. Clients outside a round keep their memory."""

    reference = "Stich et al. 2018, NeurIPS, algorithm 1 (Mem-SGD); share of Aji & Heafield 2017"
    stages = ("client",)
    strength = Strength("kept", 0.9, 1e-4)

    kept: float = parameter(
        0.01, "k/d, share of sent coordinates", source="Aji & Heafield 2017 (drops 99 %)", low=0, high=1
    )

    def transforms(self, setting: Setting) -> StageTransforms:
        return {"client": (RememberUnsent(share=1 - self.kept),)}
