"""Sign compression: a bit per coordinate, and a scale per tensor."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bench.defenses.base import Context, Shown, Tensors, Transform
from bench.defenses.transforms.rows import broadcast, rows


@dataclass(frozen=True, slots=True)
class ScaledSign(Transform):
    """Replace each tensor g in each row, with n coordinates, by (‖g‖₁/n)·sign(g) (Karimireddy et al. 2019, §4).
    sign(0) = 0: a coordinate without gradient sends zero, so an earlier mask stays visible.
    """

    reads: ClassVar[Shown] = "directions"  # signs, so a clip may follow

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        return {name: _scale(tensor, context.lead) * tensor.sign() for name, tensor in tensors.items()}

    @property
    def keeps(self) -> tuple[Shown, ...]:
        return ("zeros",)

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor]:
        """Return the candidate's scale times the reading's signs, plus the candidate at coordinates with a wrong sign.
        The truth has no wrong sign.  The derivative is the required change in the candidate, whereas the code's
        derivative is zero except for the scale.
        """
        simulated = {}
        for name, tensor in tensors.items():
            sign = observed[name].detach().sign()
            wrong = torch.where(sign == 0, tensor, sign * (sign * tensor).clamp_max(0))
            simulated[name] = _scale(tensor, context.lead) * sign + wrong
        return simulated


def _scale(tensor: Tensor, lead: int) -> Tensor:
    """Return the mean magnitude of each row, shaped to multiply the row."""
    return broadcast(rows(tensor, lead).abs().mean(-1), tensor)
