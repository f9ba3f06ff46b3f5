"""Random pruning: send a random subset of the coordinates above a threshold."""

from dataclasses import dataclass
from typing import Literal

from bench.defenses.base import Defense, Setting, StageTransforms
from bench.defenses.strength import Strength
from bench.defenses.transforms.mask import KeepRandom
from bench.defenses.transforms.noise import GaussianNoise
from bench.parameters import parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomPrune(Defense):
    """Send a fixed share of the coordinates, drawn at random from the coordinates with magnitude above a threshold; all
    others become zero.

    DSSGD's optional noise on sent coordinates is Gaussian here, without a claimed ε; the original splits ε between
    Laplace noise and a noisy selection."""

    reference = "Shokri & Shmatikov 2015 (DSSGD), as in Fed-αCDP §4.1"
    stages = ("example", "client")
    strength = Strength("share", 0.1, 0.9999, "log-rest")

    share: float = parameter(
        0.7, "share of coordinates set to zero, more if few pass the threshold", source="ours", low=0, high=1
    )
    threshold: float = parameter(
        1e-4, "magnitude above which a coordinate may be drawn", unit="of the update", source="ours", low=0
    )
    deviation: float = parameter(
        0.0, "noise deviation on sent coordinates; 0: none", unit="of the update", source="ours", low=0
    )
    at: Literal["client", "example"] = parameter(
        "client", "level: client updates or example gradients", source="Fed-αCDP"
    )

    def transforms(self, setting: Setting) -> StageTransforms:
        mask = KeepRandom(share=self.share, threshold=self.threshold)
        if not self.deviation:
            return {self.at: (mask,)}
        return {self.at: (mask, GaussianNoise(deviation=self.deviation, on="nonzero"))}
