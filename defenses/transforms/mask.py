"""Mask: keep some coordinates of the whole update of a row, and set the others to zero."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bench.defenses.base import Context, Tensors, Transform
from bench.defenses.transforms.rows import joined, parted, rows, spread


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepLargest(Transform):
    """Zero the `share` of coordinates of least magnitude (Fed-αCDP §4.1, threshold pruning; Lin et al. 2018).

    The count is exact, round(share·n) of the n coordinates of all tensors together; of equal
    magnitudes the first in the order of the tensors stays.
    """

    share: float

    def __post_init__(self) -> None:
        _checked_share(self.share)

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        magnitudes = {name: tensor.abs() for name, tensor in tensors.items()}
        return _masked(tensors, _first(magnitudes, self.share, context.lead))

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor]:
        """The candidate where the reading is not zero: which coordinates were kept is in plain sight.

        Elsewhere what it has beyond the least magnitude kept: those that were zeroed had no more.  (Not
        where one reading is the mean of several rows: its zeros say it of each, its magnitudes of none.)
        """
        kept = {name: observed[name] != 0 for name in tensors}
        masked = _masked(tensors, kept)
        if any(tensors[name].shape != observed[name].shape for name in tensors):
            return masked
        least = _least_kept(masked, observed, context.lead)
        return {
            name: torch.where(kept[name], tensor, tensor - tensor.clamp(-bound, bound))
            for name, tensor in tensors.items()
            for bound in (spread(least, tensor),)
        }


def _least_kept(masked: Tensors, observed: Tensors, lead: int) -> Tensor:
    """The least magnitude that each row kept, (*lead,): the reading's, times what a clip behind may have taken."""
    bounds = []
    for name, tensor in masked.items():
        seen, ours = rows(observed[name], lead), rows(tensor, lead)
        norm = torch.linalg.vector_norm(seen, dim=-1)
        taken = torch.linalg.vector_norm(ours, dim=-1) / norm.clamp_min(torch.finfo(norm.dtype).tiny)
        magnitudes = seen.abs().where(seen != 0, seen.new_tensor(torch.inf))
        bounds.append(magnitudes.amin(-1) * taken.clamp_min(1))
    return torch.stack(bounds).amin(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepRandom(Transform):
    """Keep a random subset of the coordinates whose magnitude is above `threshold`.

    Shokri & Shmatikov 2015 (DSSGD): a fixed share of all coordinates is sent, here 1 - `share`,
    drawn without replacement from those above the threshold; where fewer are above it, all of them.
    """

    random: ClassVar[bool] = True

    share: float
    threshold: float = 0.0

    def __post_init__(self) -> None:
        _checked_share(self.share)
        if not self.threshold >= 0:
            raise ValueError(f"threshold must be at least 0, got {self.threshold}")

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        above = {name: tensor.abs() > self.threshold for name, tensor in tensors.items()}
        lots = {
            name: context.draws.uniform(f"{name}/mask", tensor).where(above[name], tensor.new_tensor(-1.0))
            for name, tensor in tensors.items()
        }
        drawn = _first(lots, self.share, context.lead)
        return _masked(tensors, {name: drawn[name] & above[name] for name in tensors})

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor]:
        """The candidate where the reading is not zero."""
        del context
        return _masked(tensors, {name: observed[name] != 0 for name in tensors})


def _first(scores: Tensors, share: float, lead: int) -> dict[str, Tensor]:
    """True for all but round(share·n) of each row's n coordinates: those of the highest scores.

    A stable sort: equal scores are taken in order, on every device.
    """
    vectors = joined(scores, lead)
    count = vectors.shape[-1]
    order = vectors.argsort(dim=-1, descending=True, stable=True)[..., : count - round(share * count)]
    kept = torch.zeros_like(vectors, dtype=torch.bool)
    return parted(kept.scatter(-1, order, torch.ones_like(order, dtype=torch.bool)), scores, lead)


def _masked(tensors: Tensors, masks: Tensors) -> dict[str, Tensor]:
    return {
        name: torch.where(masks[name], tensor, torch.zeros_like(tensor)) for name, tensor in tensors.items()
    }


def _checked_share(share: float) -> None:
    if not 0 <= share <= 1:
        raise ValueError(f"share of coordinates set to zero must lie in [0, 1], got {share}")
