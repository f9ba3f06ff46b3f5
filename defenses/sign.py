"""Sign: a client sends the signs of its update, and one scale for each tensor."""

from dataclasses import dataclass
from typing import Literal

from bench.defenses.base import Defense, Setting, StageTransforms
from bench.defenses.transforms.sign import ScaledSign
from bench.parameters import parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign(Defense):
    """Send (‖g‖₁/n)·sign(g) of each tensor g of n coordinates.

    signSGD (Bernstein et al. 2018, algorithm 1) sends sign(g) alone, and leaves its size to the step; the scale is
    that of EF-signSGD (Karimireddy et al. 2019, algorithm 1).  Departures: the server takes the mean of the updates,
    not signSGD's majority vote, and no error is kept for the next round, as EF-signSGD does (`top-k` has such a
    memory).
    """

    reference = "Bernstein et al. 2018 (signSGD); the scale of Karimireddy et al. 2019"
    stages = ("example", "client")

    at: Literal["client", "example"] = parameter(
        "client", "what is compressed", source="Bernstein et al. 2018, algorithm 1"
    )

    def transforms(self, setting: Setting) -> StageTransforms:
        del setting
        return {self.at: (ScaledSign(),)}
