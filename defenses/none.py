"""No defense: what every other is measured against."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.defenses.base import Defense, Setting, Transform
from bench.points import Stage


@dataclass(frozen=True, kw_only=True)
class NoDefense(Defense):
    """The gradients as they are."""

    reference = "baseline"
    stages = ()

    def transforms(self, setting: Setting) -> Mapping[Stage, Sequence[Transform]]:
        del setting
        return {}
