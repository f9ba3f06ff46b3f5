"""No defense: the baseline for all others."""

from dataclasses import dataclass

from bench.defenses.base import Defense, Setting, StageTransforms


@dataclass(frozen=True, kw_only=True)
class NoDefense(Defense):
    """Unchanged gradients."""

    reference = "baseline"
    stages = ()

    def transforms(self, setting: Setting) -> StageTransforms:
        del setting
        return {}
