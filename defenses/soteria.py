"""Soteria (Risk-balanced's PLD): prune the input features of a linear layer, in its gradient."""

from dataclasses import dataclass

from bench.defenses.base import Defense, Setting, StageTransforms
from bench.defenses.transforms.features import linear
from bench.defenses.transforms.representation import PruneRepresentation
from bench.parameters import parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Soteria(Defense):
    """Zero columns in a linear layer's weight gradient, for the input features with least ‖∂r_i/∂x‖/|r_i|.

    Those features reveal most about the example; other layers are unchanged.  Broken by Balunović et al. 2022: the
    reading shows the missing columns, and the other layers suffice.
    """

    reference = "Sun et al. 2021 (Soteria), §4; Risk-balanced's PLD"
    stages = ("example",)

    share: float = parameter(
        0.6, "share of pruned features: .6 for DGA, .8 for GIA", source="Risk-balanced §6", low=0, high=1
    )
    layer: str = parameter("", "name of the linear layer; empty: the last", source="ours")

    def transforms(self, setting: Setting) -> StageTransforms:
        if setting.public is not None:
            linear(setting.public.model, self.layer)
        return {"example": (PruneRepresentation(share=self.share, layer=self.layer),)}
