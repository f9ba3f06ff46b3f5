"""Sign compression: a bit per coordinate, and a scale per tensor."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bench.defenses.base import Context, Quantised, Shown, State, Tensors, Transform
from bench.defenses.transforms.rows import broadcast
from bench.rows import rows


@dataclass(frozen=True, slots=True)
class ScaledSign(Transform):
    """Compress to signs with a scale: each tensor g in each row (a client's or an example's tensors), with n
    coordinates, becomes (‖g‖₁/n)·sign(g) (Karimireddy et al. 2019, §4). sign(0) = 0: a coordinate without gradient
    sends zero, so an earlier mask stays visible."""

    reads: ClassVar[Shown] = "directions"  # signs, so a clip may follow

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        return {name: _scale(tensor, context.lead) * tensor.sign() for name, tensor in tensors.items()}

    @property
    def quantises(self) -> Quantised:
        return "signs"

    @property
    def keeps(self) -> tuple[Shown, ...]:
        return ("zeros",)

    def smoothed(
        self, tensors: Tensors, state: State, context: Context, width: float
    ) -> tuple[dict[str, Tensor], State]:
        """Simulate the transform on an attacker's candidate gradients `tensors`, with a gradual transition between the
        signs, so that a search has a useful derivative. Return the result and the unchanged `state`.

        A coordinate g becomes κ·s·tanh(g/(`width`·s)), with the tensor's scale s = ‖g‖₁/n over its n coordinates;
        `width` is relative to s. The factor κ makes the squared distance to s·sign(g) least: for large widths, the
        result is the best linear approximation. `context`: place in the training."""
        soft = {}
        for name, tensor in tensors.items():
            scale = _scale(tensor, context.lead)
            tiny = torch.finfo(tensor.dtype).tiny
            bent = torch.tanh(tensor / (width * scale).clamp_min(tiny))
            flat = rows(bent, context.lead)
            factor = flat.abs().sum(-1) / flat.square().sum(-1).clamp_min(tiny)
            soft[name] = broadcast(factor, tensor) * scale * bent
        return soft, state

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor]:
        """Simulate the transform on an attacker's candidate gradients `tensors`, with the signs that the attacked
        reading `observed` shows: the candidate's scale times the reading's signs, plus the candidate itself at
        coordinates with a wrong sign. The true gradient has no wrong sign. The added part has a derivative that leads a
        search to the right signs; the derivative of the transform itself is zero, except for the scale. `context`:
        place in the training."""
        simulated = {}
        for name, tensor in tensors.items():
            sign = observed[name].detach().sign()
            wrong = torch.where(sign == 0, tensor, sign * (sign * tensor).clamp_max(0))
            simulated[name] = _scale(tensor, context.lead) * sign + wrong
        return simulated


def _scale(tensor: Tensor, lead: int) -> Tensor:
    """Return the mean magnitude of each row of `tensor` (after `lead` leading axes), shaped to multiply the row."""
    return broadcast(rows(tensor, lead).abs().mean(-1), tensor)
