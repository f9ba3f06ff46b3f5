"""A defense of a single transform, for contracts that must find its fault."""

from dataclasses import dataclass

from bench.defenses.base import Defense, Setting, StageTransforms, Transform
from bench.points import STAGES, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted(Defense):
    """`transform` at `stage`."""

    reference = "none"
    stages = STAGES
    transform: Transform
    stage: Stage = "client"

    def transforms(self, setting: Setting) -> StageTransforms:
        del setting
        return {self.stage: (self.transform,)}
