"""Soteria (called PLD in Risk-balanced): prune a linear layer's input features in the layer's gradient."""

from dataclasses import dataclass

from bench.defenses.base import Defense, Setting, StageTransforms
from bench.defenses.strength import Strength
from bench.defenses.transforms.features import linear
from bench.defenses.transforms.representation import PruneRepresentation
from bench.parameters import parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Soteria(Defense):
    """Remove the features that reveal most about an example from a linear layer's weight gradient: zero the columns of
    the input features r_i with least ‖∂r_i/∂x‖/|r_i|, for example x. Other layers are unchanged. Balunović et al. 2022
    broke this defense: the reading (the observed update) shows the missing columns, and the other layers suffice for a
    reconstruction."""

    reference = "Sun et al. 2021 (Soteria), §4; Risk-balanced's PLD"
    stages = ("example",)
    strength = Strength("share", 0.05, 0.99, "log-rest")

    share: float = parameter(
        0.6, "share of pruned features: .6 for DGA, .8 for GIA", source="Risk-balanced §6", low=0, high=1
    )
    layer: str = parameter("", "name of the linear layer; empty: the last", source="ours")

    def transforms(self, setting: Setting) -> StageTransforms:
        if setting.public is not None:
            linear(setting.public.model, self.layer)
        return {"example": (PruneRepresentation(share=self.share, layer=self.layer),)}
