"""Similarity of an update and its replay, by reading and by tensor."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]
_OFF = 0.05  # of a tensor's replay: what a tensor may be off by
_ROUNDING = 1e-5  # of the whole gradient: below, a tensor is rounding
_TINY = 1e-300


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """Similarity figures, each (reading,)."""

    cosine: Tensor
    scale: Tensor
    """Length of the update over length of the replay."""
    residual: Tensor
    """Squared distance."""
    share: Tensor
    """Share of the replay in the update: 1 under additive noise."""
    energy: Tensor
    """‖replay‖²."""
    off: Mapping[str, Tensor]
    """Tensor → relative distance to its replay, for tensors beyond rounding."""

    @property
    def worst(self) -> int:
        """Least similar reading: by cosine, ties by scale."""
        return int((1 - self.cosine + self.scale.clamp_min(_TINY).log().abs()).argmax())

    @property
    def least(self) -> tuple[float, float]:
        """Cosine and scale of the least similar reading."""
        return float(self.cosine[self.worst]), float(self.scale[self.worst])

    def alike(self, enough: float, length: float) -> bool:
        """Whether every reading has at least this cosine, and a length within this share of its replay's length."""
        return bool((self.cosine >= enough).all() and ((self.scale - 1).abs() <= length).all())


def likeness(sent: Tensors, replay: Tensors) -> Likeness:
    """Similarity of update and replay, both name → (reading, *shape).  Two zeros are equal."""
    pairs = {name: (sent[name].double().flatten(1), replay[name].double().flatten(1)) for name in sent}
    a, b = (torch.cat([pair[n] for pair in pairs.values()], 1) for n in (0, 1))
    long, energy, product = a.norm(dim=1), b.square().sum(1), (a * b).sum(1)
    zeros = (long == 0) & (energy == 0)
    cosine = (product / (long * energy.sqrt()).clamp_min(_TINY)).nan_to_num(0.0)
    scale = (long / energy.sqrt().clamp_min(_TINY)).nan_to_num(0.0)
    off = {}
    for name, (x, y) in pairs.items():
        gap = ((x - y).norm(dim=1) - _ROUNDING * energy.sqrt()).clamp_min(0) / y.norm(dim=1).clamp_min(_TINY)
        if bool((gap > _OFF).any()):
            off[name] = gap
    return Likeness(
        cosine=torch.where(zeros, 1.0, cosine),
        scale=torch.where(zeros, 1.0, scale),
        residual=(a - b).square().sum(1),
        share=(product / energy.clamp_min(_TINY)).nan_to_num(0.0),
        energy=energy,
        off=off,
    )
