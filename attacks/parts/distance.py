"""Distances between a candidate's gradient and the reading's, one figure per reading."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]
Kind = Literal["l2", "cosine", "l1"]


def distance(kind: Kind, candidate: Tensors, observed: Tensors) -> Tensor:
    """Over all tensors jointly: name → (reading, *shape) twice → (reading,).

    `l2`: Σ (c - o)²; `l1`: Σ |c - o|; `cosine`: 1 - c·o / (‖c‖‖o‖) (Geiping et al. 2020, eq. 4).
    """
    if kind == "cosine":
        dot = _total({name: c * observed[name] for name, c in candidate.items()})
        norms = _total({n: c * c for n, c in candidate.items()}) * energy(observed)
        return 1 - dot / norms.clamp_min(torch.finfo(norms.dtype).tiny).sqrt()
    gaps = {name: c - observed[name] for name, c in candidate.items()}
    if kind == "l1":
        return _total({name: gap.abs() for name, gap in gaps.items()})
    return _total({name: gap * gap for name, gap in gaps.items()})


def energy(tensors: Tensors) -> Tensor:
    """Σ of squares over all tensors, (reading,)."""
    return _total({name: value * value for name, value in tensors.items()})


def nothing(kind: Kind, observed: Tensors) -> Tensor:
    """The distance of a zero gradient: what a candidate that explains nothing gets, (reading,)."""
    if kind == "cosine":
        return torch.ones_like(energy(observed))
    if kind == "l1":
        return _total({name: value.abs() for name, value in observed.items()})
    return energy(observed)


def _total(tensors: Tensors) -> Tensor:
    parts = [value.flatten(1).sum(1) for value in tensors.values()]
    return torch.stack(parts).sum(0)
