"""Sign: one bit for each coordinate, and one scale for each tensor."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bench.defenses.base import Context, Shown, Tensors, Transform
from bench.defenses.transforms.rows import broadcast, rows


@dataclass(frozen=True, slots=True)
class ScaledSign(Transform):
    """g → (‖g‖₁/n)·sign(g) of each tensor of each row, n its coordinates (Karimireddy et al. 2019, §4).

    sign(0) is 0: a coordinate without a gradient sends nothing, and a mask before this one stays a mask.
    """

    reads: ClassVar[Shown] = "directions"  # the signs: a clip may come after it

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        return {name: _scale(tensor, context.lead) * tensor.sign() for name, tensor in tensors.items()}

    @property
    def keeps(self) -> tuple[Shown, ...]:
        return ("zeros",)

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor]:
        """The candidate's own scale with the signs that the reading shows, plus the candidate itself at each
        coordinate whose sign is another: the truth has none of those.

        The derivative is of what a candidate has to change.  That of the code is zero but for the scale.
        """
        simulated = {}
        for name, tensor in tensors.items():
            sign = observed[name].detach().sign()
            wrong = torch.where(sign == 0, tensor, sign * (sign * tensor).clamp_max(0))
            simulated[name] = _scale(tensor, context.lead) * sign + wrong
        return simulated


def _scale(tensor: Tensor, lead: int) -> Tensor:
    """The mean magnitude of each row, shaped to multiply it."""
    return broadcast(rows(tensor, lead).abs().mean(-1), tensor)
