"""Soteria (Risk-balanced's PLD): the input features of one linear layer are pruned, in its gradient."""

from dataclasses import dataclass

from bench.defenses.base import Defense, Setting, StageTransforms
from bench.defenses.transforms.features import linear
from bench.defenses.transforms.representation import PruneRepresentation
from bench.parameters import parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Soteria(Defense):
    """Zero the columns of one linear layer's weight gradient for the input features with the least ‖∂r_i/∂x‖/|r_i|,
    which reveal most of the example; other layers are unchanged.

    Balunović et al. 2022 broke it: the reading shows which columns are missing, and the other layers suffice.
    """

    reference = "Sun et al. 2021 (Soteria), §4; Risk-balanced's PLD"
    stages = ("example",)

    share: float = parameter(
        0.6, "of the features that are pruned: .6 for DGA, .8 for GIA", source="Risk-balanced §6", low=0, high=1
    )
    layer: str = parameter("", "name of the linear layer; empty: the last", source="ours")

    def transforms(self, setting: Setting) -> StageTransforms:
        if setting.public is not None:
            linear(setting.public.model, self.layer)
        return {"example": (PruneRepresentation(share=self.share, layer=self.layer),)}
