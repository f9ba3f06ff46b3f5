"""Distances between a candidate's gradient c and the observed gradient o, with a value per reading."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bench.rows import rows
from bench.trip import Tensors

Kind = Literal["l2", "cosine", "l1"]
Layers = Literal["equal", "normalised"]
_LEAST = 1e-4  # of the mean variance: lower bound for a coordinate's variance


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """Distance between a candidate's gradient c and the observed gradient o, over all tensors together: the function
    that a gradient matching attack minimises."""

    kind: Kind
    """`l2`: Σ (c - o)²; `l1`: Σ |c - o|; `cosine`: 1 - c·o / (‖c‖‖o‖) (Geiping et al. 2020, eq. 4)."""
    layers: Layers = "equal"
    """Weights of tensors: "equal", or "normalised". With "normalised", a zero gradient has the same distance in each
    tensor."""
    exclude: tuple[str, ...] = ()
    """Prefixes of parameter names; tensors with such a name are left out, as for the "muted" attacker of the paper
    Risk-balanced."""
    unknown_scale: bool = False
    """True if an unknown factor may have shortened the reading: the distance is then the minimum over factors s ≥ 1 on
    the observed gradient. With s below 1, a zero gradient would explain every reading."""
    variances: Tensors | None = None
    """Noise variance of each coordinate, name → broadcastable to (*shape); None gives all coordinates equal weight.
    Both gradients are multiplied by √(`variance` / variance of the coordinate), so noisy coordinates count less."""
    variance: float = 0.0
    """Mean over all coordinates of `variances`; not used if `variances` is None."""

    def __call__(self, candidate: Tensors, observed: Tensors) -> Tensor:
        """Return the distance (reading,) between `candidate` and `observed`, both name → (reading, *shape). Raises
        `ValueError` if `exclude` leaves no tensor."""
        names = self._names(observed)
        c, o = self._weighed(candidate, names), self._weighed(observed, names)
        if self.kind == "cosine":
            weights = self._weights(o, 2)
            dot, of_c, of_o = (_total({n: a[n] * b[n] for n in names}, weights) for a, b in ((c, o), (c, c), (o, o)))
            norms = of_c * of_o
            return 1 - dot / norms.clamp_min(torch.finfo(norms.dtype).tiny).sqrt()
        gaps = {n: c[n] - target for n, target in (_rescaled(c, o) if self.unknown_scale else o).items()}
        if self.kind == "l1":
            return _total({n: gap.abs() for n, gap in gaps.items()}, self._weights(o, 1))
        return _total({n: gap * gap for n, gap in gaps.items()}, self._weights(o, 2))

    def of_zero(self, observed: Tensors) -> Tensor:
        """Return the distance (reading,) of a zero gradient from each reading's gradient: the scale by which attacks
        judge whether a distance is small. `observed`: the readings, name → (reading, *shape)."""
        o = self._weighed(observed, self._names(observed))
        if self.kind == "cosine":
            return torch.ones_like(_total(o))
        power = 1 if self.kind == "l1" else 2
        return _total({n: v.abs() ** power for n, v in o.items()}, self._weights(o, power))

    def squared_norm(self, observed: Tensors) -> Tensor:
        """Return the squared norm ‖o‖² (reading,) of each reading's gradient o, with the tensors' weights in this
        distance, as the unit for squared differences. `observed`: the readings, name → (reading, *shape)."""
        o = self._weighed(observed, self._names(observed))
        return _total({n: value * value for n, value in o.items()}, self._weights(o, 2))

    def _weighed(self, tensors: Tensors, names: list[str]) -> dict[str, Tensor]:
        if self.variances is None:
            return {name: tensors[name] for name in names}
        least = _LEAST * self.variance
        return {
            name: tensors[name] * (self.variance / self.variances[name].clamp_min(least)).sqrt().to(tensors[name])
            for name in names
        }

    def _names(self, observed: Tensors) -> list[str]:
        names = [name for name in observed if not (self.exclude and name.startswith(self.exclude))]
        if not names:
            raise ValueError(f"exclude = {list(self.exclude)} leaves no tensor of {', '.join(observed)}")
        return names

    def _weights(self, o: Tensors, power: int) -> dict[str, Tensor] | None:
        if self.layers == "equal":
            return None
        energies = {n: rows(value.detach().abs() ** power, 1).sum(1) for n, value in o.items()}
        mean = torch.stack(list(energies.values())).mean(0)
        return {n: mean / torch.maximum(energy, 1e-6 * mean) for n, energy in energies.items()}


def _rescaled(c: Tensors, o: Tensors) -> dict[str, Tensor]:
    """Return s·o for each reading, with the factor s ≥ 1 that makes ‖c - s·o‖² least."""
    dot = _total({n: c[n] * o[n] for n in o})
    energy = _total({n: o[n] * o[n] for n in o})
    s = (dot / energy.clamp_min(torch.finfo(energy.dtype).tiny)).clamp_min(1)
    return {n: value * s.reshape(-1, *(1,) * (value.dim() - 1)) for n, value in o.items()}


def _total(tensors: Tensors, weights: Tensors | None = None) -> Tensor:
    sums = {name: rows(value, 1).sum(1) for name, value in tensors.items()}
    return torch.stack([s if weights is None else weights[n] * s for n, s in sums.items()]).sum(0)
