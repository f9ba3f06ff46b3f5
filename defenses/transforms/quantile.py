"""Adaptive clipping: the norm bound follows a quantile of the norms during training (Andrew et al. 2021)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bench.defenses.base import AddedNoise, Context, Scaling, Shapes, State, Tensors, Transform
from bench.defenses.transforms.clip import clip_factors
from bench.defenses.transforms.rows import joint_norm, norms, rescaled


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileClip(Transform):
    """Clip with an adaptive bound: clip each row by its joint norm to C, add N(0, (multiplier·C)²), and move C towards
    the γ-quantile of the norms. C ← C·exp(-η_C(b̃ - γ)) with b̃ = (Σ 1[norm ≤ C] + N(0, σ_b²))/n for n rows; each row
    adds a share of the count noise. Rows are a round's updates for `owner` "server", or a batch's example gradients for
    "client"."""

    random: ClassVar[bool] = True

    owner: Literal["server", "client"]
    """Owner of the bound C: the server, or each client."""
    initial_bound: float
    """C before round 0."""
    multiplier: float
    """Noise multiplier of each row: noise deviation over the bound C."""
    count_noise: float
    """σ_b, the deviation of the noise on the count of rows within C."""
    quantile: float = 0.5
    """γ, the target share of rows within C."""
    rate: float = 0.2
    """η_C, the step size for the logarithm of C."""

    @property
    def steady(self) -> bool:
        return True

    def initial(self, shapes: Shapes) -> State:
        return {"bound": torch.tensor(self.initial_bound, dtype=torch.float64)}

    def update(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        scaling, after = self.update_by_norms(norms(tensors, context.lead), state, context)
        return rescaled(tensors, scaling, context), after

    def update_by_norms(self, norms: Tensors, state: State, context: Context) -> tuple[Scaling, State]:
        whole = joint_norm(norms)  # (client,) or (client, example)
        bound = state["bound"].to(whole)
        of_row = (bound[:, None] if self.owner == "client" else bound).expand(whole.shape)
        shares = context.draws.normal("within", whole[..., None])[..., 0] / whole.shape[-1] ** 0.5
        within = (whole <= of_row).to(whole.dtype) + self.count_noise * shares
        share = within.mean(-1).to(state["bound"])
        after = state["bound"] * torch.exp(-self.rate * (share - self.quantile))
        return Scaling(clip_factors(norms, of_row, "flat"), self.multiplier * of_row), {"bound": after}

    def noise(self, context: Context, state: State) -> AddedNoise:
        """Return the noise that attackers assume: variance (`multiplier`·C)² on each coordinate, for the current bound
        C in `state`, averaged over clients. `context`: place in the training."""
        bound = state["bound"]
        return AddedNoise(variance=(self.multiplier * float(bound.mean())) ** 2)
