"""No defense: what every other is measured against."""

from dataclasses import dataclass

from bench.defenses.base import Defense, Setting, StageTransforms


@dataclass(frozen=True, kw_only=True)
class NoDefense(Defense):
    """The gradients as they are."""

    reference = "baseline"
    stages = ()

    def transforms(self, setting: Setting) -> StageTransforms:
        del setting
        return {}
