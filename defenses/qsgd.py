"""QSGD: round each coordinate at random to s levels, relative to its tensor's norm."""

from dataclasses import dataclass
from typing import Literal

from bench.defenses.base import Defense, Setting, StageTransforms
from bench.defenses.strength import Strength
from bench.defenses.transforms.levels import StochasticLevels
from bench.parameters import parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Qsgd(Defense):
    """Quantise each coordinate by random rounding: |v_i|/‖v‖₂ becomes an adjacent multiple of 1/s, without bias; sign
    and norm are kept. Q_s(v)_i = ‖v‖₂·sign(v_i)·ξ_i with the rounded value ξ_i, E Q_s(v) = v. The default is the
    paper's dense regime, s = √n, with E‖Q_s(v)‖² ≤ 2‖v‖². Departures: norms are sent per tensor with n coordinates; the
    paper's experiments cut tensors into fixed-size buckets and leave small tensors unchanged. The lossless code for
    levels is omitted."""

    reference = "Alistarh et al. 2017 (QSGD), NeurIPS, §3.1, theorem 3.2 and corollary 3.3"
    stages = ("example", "client")
    strength = Strength("levels", 65536, 1)

    levels: int | None = parameter(
        None,
        "s, levels of a magnitude above 0; none: √n of a tensor of n coordinates",
        source="QSGD corollary 3.3",
        low=1,
    )
    at: Literal["client", "example"] = parameter(
        "client", "level: client updates or example gradients", source="QSGD algorithm 1"
    )

    def transforms(self, setting: Setting) -> StageTransforms:
        return {self.at: (StochasticLevels(levels=self.levels, norm="l2"),)}
