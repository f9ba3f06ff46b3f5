"""Sign: send an update's signs, and a single scale per tensor."""

from dataclasses import dataclass
from typing import Literal

from bench.defenses.base import Defense, Setting, StageTransforms
from bench.defenses.transforms.sign import ScaledSign
from bench.parameters import parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign(Defense):
    """Compress an update to signs and a scale per tensor: send (‖g‖₁/n)·sign(g) for each tensor g with n coordinates.
    signSGD (Bernstein et al. 2018, algorithm 1) sends only sign(g), and leaves the size to the learning rate. The scale
    comes from EF-signSGD (Karimireddy et al. 2019, algorithm 1). Departures: the server averages updates, without
    signSGD's majority vote. Clients keep no error for the next round, unlike EF-signSGD (`top-k` has such a memory)."""

    reference = "Bernstein et al. 2018 (signSGD); the scale of Karimireddy et al. 2019"
    stages = ("example", "client")

    at: Literal["client", "example"] = parameter(
        "client", "level: client updates or example gradients", source="Bernstein et al. 2018, algorithm 1"
    )

    def transforms(self, setting: Setting) -> StageTransforms:
        return {self.at: (ScaledSign(),)}
