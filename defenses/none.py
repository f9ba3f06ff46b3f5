"""No defense: the baseline for all defenses."""

from dataclasses import dataclass

from bench.defenses.base import Defense, Setting, StageTransforms


@dataclass(frozen=True, kw_only=True)
class NoDefense(Defense):
    """Leave all gradients unchanged."""

    reference = "baseline"
    stages = ()

    def transforms(self, setting: Setting) -> StageTransforms:
        return {}
