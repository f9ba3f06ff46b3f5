"""Slice noise: each client adds Gaussian noise to a few slices of its update, chosen anew in each round."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bench.defenses.base import AddedNoise, Context, State, Tensors, Transform
from bench.defenses.ranges import at_least
from bench.rows import flattened, unflattened


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceNoise(Transform):
    """Add noise to a part of an update only: N(0, `deviation`²) on `count` random slices (ranges of coordinates) of
    each row (a client's tensors). The slices are drawn by reservoir sampling (Risk-balanced algorithm 1)."""

    random: ClassVar[bool] = True

    ends: tuple[int, ...]
    """End position of each slice in the concatenated tensors; the last end is the total number of coordinates."""
    count: int
    """Number of slices with noise."""
    deviation: float
    """Noise deviation on the coordinates of a slice with noise."""

    def __post_init__(self) -> None:
        if not 1 <= self.count <= len(self.ends):
            raise ValueError(f"{self.count} of {len(self.ends)} slices cannot be chosen")
        at_least("deviation", self.deviation)

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        vectors = flattened(tensors, context.lead)
        like = vectors.new_empty((*vectors.shape[:-1], len(self.ends)))
        chosen = reservoir(context.draws.uniform("slices", like), self.count)
        noised = chosen.repeat_interleave(self._lengths(vectors), -1, output_size=self.ends[-1])
        noise = {name: context.draws.normal(name, tensor) for name, tensor in tensors.items()}
        result = vectors + self.deviation * noised.to(vectors) * flattened(noise, context.lead)
        return unflattened(result, tensors, context.lead)

    def expected(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        return dict(tensors), state

    def noise(self, context: Context, state: State) -> AddedNoise:
        """Return the noise that attackers assume: the variance on a coordinate, averaged over the random choice of the
        slices (ranges of coordinates) with noise. The noise is not Gaussian, since most coordinates have none.
        `context`: place in the training; `state` is not used."""
        return AddedNoise(variance=self.deviation**2 * self.count / len(self.ends))

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor]:
        """Simulate the transform on an attacker's candidate updates `tensors`, without knowledge of the noised slices:
        the result is the candidate, except for the `count` slices that fit worst, which take the values of the attacked
        reading `observed`. These slices add 0 to the squared distance between result and reading, which is then the
        least over all choices of noised slices (least trimmed squares). For the true gradient, the remaining slices are
        those without noise. `context`: place in the training."""
        seen, candidate = flattened(observed, context.lead), flattened(tensors, context.lead)
        squares = torch.split((candidate.detach() - seen).square(), self._sizes(), dim=-1)
        farthest = torch.stack([part.sum(-1) for part in squares], dim=-1).topk(self.count, dim=-1).indices
        excluded = torch.zeros((*seen.shape[:-1], len(self.ends)), dtype=torch.bool, device=seen.device)
        excluded = excluded.scatter(-1, farthest, True)
        excluded = excluded.repeat_interleave(self._lengths(seen), -1, output_size=self.ends[-1])
        return unflattened(torch.where(excluded, seen, candidate), tensors, context.lead)

    def _sizes(self) -> list[int]:
        return [end - begin for begin, end in zip((0, *self.ends), self.ends, strict=False)]

    def _lengths(self, like: Tensor) -> Tensor:
        if self.ends[-1] != like.shape[-1]:
            raise ValueError(f"slices are of {self.ends[-1]} coordinates, and there are {like.shape[-1]}")
        return torch.tensor(self._sizes(), device=like.device)


def reservoir(uniforms: Tensor, count: int) -> Tensor:
    """Draw `count` of s items at random by reservoir sampling; return a mask (…, s) of the drawn items.

    - `uniforms` (…, s): random numbers in [0, 1).

    The reservoir first holds the first `count` items. Each later item number i (from 0) draws a random position among i
    + 1 positions, and replaces the item at that position if the position is in the reservoir."""
    reservoir = torch.arange(count, device=uniforms.device).expand(*uniforms.shape[:-1], count).clone()
    for item in range(count, uniforms.shape[-1]):
        place = (uniforms[..., item : item + 1] * (item + 1)).long()
        reservoir = torch.where(torch.arange(count, device=uniforms.device) == place, item, reservoir)
    return torch.zeros(uniforms.shape, dtype=torch.bool, device=uniforms.device).scatter(-1, reservoir, True)
