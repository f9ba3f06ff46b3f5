"""Clipping to a quantile of the norms, learnt on the way (Andrew et al. 2021)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bench.defenses.base import Context, Scaled, Stateful, Tensors
from bench.defenses.transforms.clip import clip_factors
from bench.defenses.transforms.rows import joint, norms, scaled


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileClip(Stateful):
    """Clip rows, all tensors together, to C; add N(0, (multiplier·C)²); move C towards the `quantile` γ of
    the norms: C ← C·exp(-η_C(b̃ - γ)), b̃ = (Σ 1[norm ≤ C] + N(0, σ_b²))/n, to which each row adds its share.

    With the `owner` server the rows are a round's updates, with client the examples of its batch.
    """

    random: ClassVar[bool] = True

    owner: Literal["server", "client"]
    initial_bound: float
    multiplier: float
    count_noise: float  # σ_b
    quantile: float = 0.5
    rate: float = 0.2  # η_C

    def initial(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        del shapes
        return {"bound": torch.tensor(self.initial_bound, dtype=torch.float64)}

    def update(
        self, tensors: Tensors, state: Tensors, context: Context
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        told, moved = self.update_by_norms(norms(tensors, context.lead), state, context)
        return scaled(tensors, told, context), moved

    def update_by_norms(
        self, norms: Tensors, state: Tensors, context: Context
    ) -> tuple[Scaled, dict[str, Tensor]]:
        whole = joint(norms)  # (client,) or (client, example)
        bound = state["bound"].to(whole)
        of_row = (bound[:, None] if self.owner == "client" else bound).expand(whole.shape)
        shares = context.draws.normal("within", whole[..., None])[..., 0] / whole.shape[-1] ** 0.5
        within = (whole <= of_row).to(whole.dtype) + self.count_noise * shares
        share = within.mean(-1).to(state["bound"])
        moved = state["bound"] * torch.exp(-self.rate * (share - self.quantile))
        return Scaled(clip_factors(norms, of_row, "flat"), self.multiplier * of_row), {"bound": moved}

    def noise(self, context: Context) -> tuple[Literal["gaussian", "laplace"], float]:
        """With C as it starts."""
        del context
        return "gaussian", (self.multiplier * self.initial_bound) ** 2

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor] | None:
        """The candidate, clipped to C as it starts; nothing of later rounds, where C is what data made it."""
        del observed
        if context.round:
            return None
        found = norms(tensors, context.lead)
        return scaled(tensors, Scaled(clip_factors(found, self.initial_bound, "flat")), context)
