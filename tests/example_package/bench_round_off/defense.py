"""The defense: clients round their update before it leaves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.defenses.base import Defense, Setting, StageTransforms, Transform
from bench.parameters import parameter
from bench.points import Stage
from bench_round_off.rounding import Round


@dataclass(frozen=True, kw_only=True)
class RoundOff(Defense):
    """Each client sends its update rounded to a few bits a coordinate."""

    reference = "after Alistarh et al. 2017 (QSGD), without its random rounding"
    stages = ("client",)

    bits: int = parameter(4, "kept of each coordinate, its sign included", unit="bit", source="ours", low=2)

    def transforms(self, setting: Setting) -> StageTransforms:
        del setting
        return {"client": (Round(bits=self.bits),)}
