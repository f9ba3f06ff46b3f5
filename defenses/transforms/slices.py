"""Slice noise: Gaussian noise on a few slices of an update, drawn anew by each client in each round."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bench.defenses.base import Context, Tensors, Transform
from bench.defenses.transforms.rows import joined, parted


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceNoise(Transform):
    """Add N(0, `deviation`²) to `count` of the slices, chosen by reservoir sampling (Risk-balanced algorithm 1).

    `ends` are the slices' ends in coordinates of all tensors end to end; the last is their whole number.
    """

    random: ClassVar[bool] = True

    ends: tuple[int, ...]
    count: int
    deviation: float

    def __post_init__(self) -> None:
        if not 1 <= self.count <= len(self.ends):
            raise ValueError(f"{self.count} of {len(self.ends)} slices cannot be chosen")
        if not 0 <= self.deviation < math.inf:
            raise ValueError(f"deviation must be at least 0 and finite, got {self.deviation}")

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        vectors = joined(tensors, context.lead)
        like = vectors.new_empty((*vectors.shape[:-1], len(self.ends)))
        chosen = reservoir(context.draws.uniform("slices", like), self.count)
        noised = chosen.repeat_interleave(self._lengths(vectors), -1)
        noise = {name: context.draws.normal(name, tensor) for name, tensor in tensors.items()}
        found = vectors + self.deviation * noised.to(vectors) * joined(noise, context.lead)
        return parted(found, tensors, context.lead)

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor]:
        """The candidate, but for the `count` slices in which it is farthest from the reading: there the reading
        answers for itself, as if those were the noised ones.  A squared distance then counts the other slices
        alone, the least that any choice leaves (least trimmed squares), and at the truth those are the clean ones.
        (Where one reading is the mean of several rows, the candidate as it is.)
        """
        if any(tensors[name].shape != observed[name].shape for name in tensors):
            return dict(tensors)
        seen, ours = joined(observed, context.lead), joined(tensors, context.lead)
        apart = torch.split((ours.detach() - seen).square(), self._sizes(), dim=-1)
        farthest = torch.stack([part.sum(-1) for part in apart], dim=-1).topk(self.count, dim=-1).indices
        muted = torch.zeros((*seen.shape[:-1], len(self.ends)), dtype=torch.bool, device=seen.device)
        muted = muted.scatter(-1, farthest, True).repeat_interleave(self._lengths(seen), -1)
        return parted(torch.where(muted, seen, ours), tensors, context.lead)

    def _sizes(self) -> list[int]:
        return [end - begin for begin, end in zip((0, *self.ends), self.ends, strict=False)]

    def _lengths(self, like: Tensor) -> Tensor:
        if self.ends[-1] != like.shape[-1]:
            raise ValueError(f"slices are of {self.ends[-1]} coordinates, and there are {like.shape[-1]}")
        return torch.tensor(self._sizes(), device=like.device)


def reservoir(uniforms: Tensor, count: int) -> Tensor:
    """Which of s items a reservoir of `count` ends up with, true or false, (…, s), from s uniforms in [0, 1):
    each item i beyond the first takes a random place of i + 1, and stays if that is in the reservoir."""
    held = torch.arange(count, device=uniforms.device).expand(*uniforms.shape[:-1], count).clone()
    for item in range(count, uniforms.shape[-1]):
        place = (uniforms[..., item : item + 1] * (item + 1)).long()
        held = torch.where(torch.arange(count, device=uniforms.device) == place, item, held)
    return torch.zeros(uniforms.shape, dtype=torch.bool, device=uniforms.device).scatter(-1, held, True)
