"""Threshold pruning: send only an update's largest coordinates."""

from dataclasses import dataclass
from typing import Literal

from bench.defenses.base import Defense, Setting, StageTransforms
from bench.defenses.strength import Strength
from bench.defenses.transforms.mask import KeepLargest
from bench.parameters import parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Prune(Defense):
    """Zero the coordinates with least magnitude, over the whole update.

    Fed-αCDP (§4.1) prunes a client's update, and in its type-2 studies a single example's gradient; the paper reports
    resilience above 40 % on MNIST, 50 % on CIFAR-10 and 80 % on LFW.  Deep gradient compression's momentum correction
    and local residuals are omitted, because they concern only training."""

    reference = "Lin et al. 2018 (DGC), as in Fed-αCDP §4.1"
    stages = ("example", "client")
    strength = Strength("share", 0.1, 0.9999, "log-rest")

    share: float = parameter(0.7, "share of coordinates set to zero", source="ours", low=0, high=1)
    at: Literal["client", "example"] = parameter(
        "client", "level: client updates or example gradients", source="Fed-αCDP"
    )

    def transforms(self, setting: Setting) -> StageTransforms:
        return {self.at: (KeepLargest(share=self.share),)}
