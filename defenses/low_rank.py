"""Low rank: send only the top singular directions of each weight."""

from dataclasses import dataclass
from typing import Literal

from bench.defenses.base import Defense, Setting, StageTransforms
from bench.defenses.strength import Strength
from bench.defenses.transforms.low_rank import TopDirections
from bench.parameters import parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRank(Defense):
    """Replace each weight's update, as a matrix (out, rest), by the nearest low-rank matrix.

    Fed-αCDP (abstract, §4.1) names low-rank filtering without a definition, so the definition is ours.  Biases are
    unchanged.  A linear layer's gradient for a single example already has rank 1."""

    reference = "ours; named without a definition in Fed-αCDP §4.1"
    stages = ("example", "client")
    strength = Strength("share", 1.0, 0.01)

    share: float = parameter(
        0.1, "share of min(out, rest) singular directions kept, at least one", source="ours", above=0, high=1
    )
    rank: int | None = parameter(None, "directions kept, in place of the share", source="ours", low=1)
    at: Literal["client", "example"] = parameter("client", "level: client updates or example gradients", source="ours")

    def transforms(self, setting: Setting) -> StageTransforms:
        return {self.at: (TopDirections(share=self.share, rank=self.rank),)}
