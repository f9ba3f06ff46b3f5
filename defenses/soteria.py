"""Soteria (Risk-balanced's PLD): the representation that one linear layer sees is pruned, in its gradient."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.defenses.base import Defense, Setting, Transform
from bench.defenses.transforms.representation import PruneRepresentation, linear
from bench.parameters import parameter
from bench.points import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Soteria(Defense):
    """Zero the columns of one linear layer's weight gradient for the input features that say most of the picture
    for their size, those with the least ‖∂r_i/∂x‖/|r_i|; every other layer is sent as it is.

    Balunović et al. 2022 broke it: which columns are missing is in plain sight, and the other layers suffice.
    """

    reference = "Sun et al. 2021 (Soteria), §4; Risk-balanced's PLD"
    stages = ("example",)

    share: float = parameter(
        0.6,
        "of the features that are pruned: .6 for DGA, .8 for GIA",
        source="Risk-balanced §6",
        low=0,
        high=1,
    )
    layer: str = parameter("", "name of the linear layer; empty: the last", source="ours")

    def transforms(self, setting: Setting) -> Mapping[Stage, Sequence[Transform]]:
        if setting.public is not None:
            linear(setting.public.model, self.layer)
        return {"example": (PruneRepresentation(share=self.share, layer=self.layer),)}
