"""Distances between a candidate's gradient and the reading's, one figure per reading."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]
Kind = Literal["l2", "cosine", "l1"]
Layers = Literal["equal", "normalised"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """How far a candidate's gradient c is from the reading's o.

    `l2`: Σ (c - o)²; `l1`: Σ |c - o|; `cosine`: 1 - c·o / (‖c‖‖o‖), all tensors together (Geiping et al.
    2020, eq. 4).  `layers` = "normalised" weighs each tensor so that a zero candidate is equally far in
    all of them; `exclude` leaves out tensors whose name begins so (Risk-balanced's "muted" attacker);
    `unknown_scale` takes the least distance over factors s ≥ 1 of the reading, for a reading that was
    shortened by an unknown factor (at s ≥ 1 a zero candidate explains nothing).
    """

    kind: Kind
    layers: Layers = "equal"
    exclude: tuple[str, ...] = ()
    unknown_scale: bool = False

    def __call__(self, candidate: Tensors, observed: Tensors) -> Tensor:
        """name → (reading, *shape) twice → (reading,)."""
        kept = self._kept(observed)
        c, o = {n: candidate[n] for n in kept}, {n: observed[n] for n in kept}
        if self.unknown_scale and self.kind != "cosine":
            o = _stretched(c, o)
        if self.kind == "cosine":
            weights = self._weights(o, 2)
            dot = _total({n: c[n] * o[n] for n in kept}, weights)
            norms = _total({n: c[n] * c[n] for n in kept}, weights) * _total(
                {n: o[n] * o[n] for n in kept}, weights
            )
            return 1 - dot / norms.clamp_min(torch.finfo(norms.dtype).tiny).sqrt()
        gaps = {n: c[n] - o[n] for n in kept}
        if self.kind == "l1":
            return _total({n: gap.abs() for n, gap in gaps.items()}, self._weights(observed, 1))
        return _total({n: gap * gap for n, gap in gaps.items()}, self._weights(observed, 2))

    def nothing(self, observed: Tensors) -> Tensor:
        """The distance of a zero candidate: what one that explains nothing gets, (reading,)."""
        o = {n: observed[n] for n in self._kept(observed)}
        if self.kind == "cosine":
            return torch.ones_like(_total({n: v * v for n, v in o.items()}))
        power = 1 if self.kind == "l1" else 2
        return _total({n: v.abs() ** power for n, v in o.items()}, self._weights(o, power))

    def _kept(self, observed: Tensors) -> list[str]:
        kept = (
            [name for name in observed if not name.startswith(self.exclude)]
            if self.exclude
            else list(observed)
        )
        if not kept:
            raise ValueError(f"exclude = {list(self.exclude)} leaves no tensor of {', '.join(observed)}")
        return kept

    def _weights(self, observed: Tensors, power: int) -> dict[str, Tensor] | None:
        """Each tensor's weight (reading,): mean energy over own, so that the total stays as it was."""
        if self.layers == "equal":
            return None
        kept = self._kept(observed)
        own = {n: (observed[n].detach().abs() ** power).flatten(1).sum(1) for n in kept}
        mean = torch.stack(list(own.values())).mean(0)
        return {n: mean / torch.maximum(value, 1e-6 * mean) for n, value in own.items()}


def _stretched(c: Tensors, o: Tensors) -> dict[str, Tensor]:
    """s·o with the s ≥ 1 that comes nearest to c, in squares, per reading."""
    dot = _total({n: c[n] * o[n] for n in o})
    own = _total({n: o[n] * o[n] for n in o})
    s = (dot / own.clamp_min(torch.finfo(own.dtype).tiny)).clamp_min(1)
    return {n: value * s.reshape(-1, *(1,) * (value.dim() - 1)) for n, value in o.items()}


def _total(tensors: Tensors, weights: Tensors | None = None) -> Tensor:
    parts = {name: value.flatten(1).sum(1) for name, value in tensors.items()}
    return torch.stack([p if weights is None else weights[n] * p for n, p in parts.items()]).sum(0)
