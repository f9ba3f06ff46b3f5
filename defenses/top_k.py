"""Top-k with error feedback: the largest coordinates are sent, the others are remembered."""

from dataclasses import dataclass

from bench.defenses.base import Defense, Setting, StageTransforms
from bench.defenses.transforms.feedback import RememberUnsent
from bench.parameters import parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class TopK(Defense):
    """Send top_k(m + g), the k coordinates of largest magnitude over the whole update, and keep the rest as the
    client's memory m for its next round.

    A client's first round has m = 0 and is `prune` of the same share.  Later its update carries what earlier examples
    left behind; nobody but the client knows m, so that attackers of a later round have no description.  A client that
    is not drawn keeps its memory as it is.
    """

    reference = "Stich et al. 2018, NeurIPS, algorithm 1 (Mem-SGD); share of Aji & Heafield 2017"
    stages = ("client",)

    kept: float = parameter(
        0.01, "k/d, share of the coordinates that are sent", source="Aji & Heafield 2017 (drops 99 %)", low=0, high=1
    )

    def transforms(self, setting: Setting) -> StageTransforms:
        del setting
        return {"client": (RememberUnsent(share=1 - self.kept),)}
