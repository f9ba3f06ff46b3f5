"""Similarity between an update and its replay, which is the declared protocol run on the true examples."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.rows import rows
from bench.trip import Tensors

_OFF = 0.05  # allowed distance between a tensor and its replay, relative to the replay
_ROUNDING = 1e-5  # share of the whole gradient below which a difference is rounding
_TINY = 1e-300


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """Result of a comparison of updates with their replays: cosine, ratio of lengths, and further numbers, each
    (reading,), a number per update. A replay is the update computed again, by the declared training on the true
    examples."""

    cosine: Tensor
    """Cosine between the update and its replay."""
    scale: Tensor
    """Length of the update divided by the length of its replay."""
    residual: Tensor
    """Squared distance between update and replay."""
    share: Tensor
    """Coefficient of the replay in the update, ⟨update, replay⟩ / ‖replay‖²; with additive noise 1 on average."""
    energy: Tensor
    """Squared length of the replay, ‖replay‖²."""
    off: Mapping[str, Tensor]
    """Parameters that differ from the replay by more than rounding: name → distance to the replay divided by the
    replay's norm, (reading,)."""

    @property
    def worst(self) -> int:
        """Position of the least explained update: the update with the largest 1 - cosine + |log scale| between the
        update and its replay (the update computed again)."""
        return int((1 - self.cosine + self.scale.clamp_min(_TINY).log().abs()).argmax())

    @property
    def least(self) -> tuple[float, float]:
        """Cosine and ratio of lengths between the least explained update (`worst`) and its replay (the update computed
        again)."""
        return float(self.cosine[self.worst]), float(self.scale[self.worst])

    def alike(self, enough: float, length: float) -> bool:
        """Return whether every update is near enough to its replay (the update computed again): a cosine of at least
        `enough`, and a scale within 1 ± `length`."""
        return bool((self.cosine >= enough).all() and ((self.scale - 1).abs() <= length).all())


def likeness(sent: Tensors, replay: Tensors) -> Likeness:
    """Compare the updates `sent` with `replay`, the same updates computed again on the true examples, to tell if the
    declared training explains the updates. Both are name → (reading, *shape). Two zero updates count as equal."""
    pairs = {name: (rows(sent[name].double(), 1), rows(replay[name].double(), 1)) for name in sent}
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
