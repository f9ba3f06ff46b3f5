"""NVFLARE's percentile filter: zero a share of the smallest coordinates, and limit the rest to ±gamma."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.defenses.base import Context, Defense, Setting, Shown, StageTransforms, State, Tensors, Transform
from bench.defenses.ranges import positive, share
from bench.defenses.strength import Strength
from bench.defenses.transforms.mask import gradual
from bench.defenses.transforms.rows import broadcast
from bench.parameters import parameter
from bench.rows import flattened, kth_smallest


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepAbovePercentile(Transform):
    """Keep only large coordinates, and limit them: coordinates with magnitude below a percentile over the row (a
    client's tensors) become zero, all others are limited to ±`limit`. A coordinate at the percentile is kept. The
    percentile is NumPy's: between two magnitudes, linearly interpolated."""

    percentile: float
    """Percentile of the magnitudes, from 0 to 100, below which coordinates become zero."""
    limit: float
    """Largest magnitude in the output, in units of the tensors."""

    def __post_init__(self) -> None:
        share("percentile / 100", self.percentile / 100)
        positive("limit", self.limit)

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        cutoff = self._cutoff(tensors, context.lead)
        return {
            name: self._limited(tensor).where(tensor.abs() >= broadcast(cutoff, tensor), 0.0)
            for name, tensor in tensors.items()
        }

    @property
    def keeps(self) -> tuple[Shown, ...]:
        return ("zeros",)

    def expected(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        return self.apply(tensors, context), state

    def smoothed(
        self, tensors: Tensors, state: State, context: Context, width: float
    ) -> tuple[dict[str, Tensor], State]:
        """Simulate the filter on an attacker's candidate gradients `tensors`, with a gradual transition from zeroed to
        kept, so that a search has a useful derivative. Return the result and the unchanged `state`.

        - `width`: width of the transition relative to the percentile c. sigmoid((|g|/c - 1)/`width`) replaces the
          decision |g| ≥ c for each coordinate g; a row (a client's tensors) with c = 0 needs no transition.
        - `context`: place in the training."""
        cutoff = self._cutoff(tensors, context.lead)
        shares = {
            name: gradual(tensor, broadcast(cutoff.where(cutoff > 0, 1.0), tensor), width)
            for name, tensor in tensors.items()
        }
        return {
            name: self._limited(tensor) * shares[name].where(broadcast(cutoff, tensor) > 0, 1.0)
            for name, tensor in tensors.items()
        }, state

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor]:
        """Simulate the filter on an attacker's candidate gradients `tensors`, with the zeros that the attacked reading
        `observed` shows. At nonzero coordinates the output is the candidate clipped to ±`limit`. At zeros the output is
        the part of the candidate above the filter's threshold: 0 for a right guess. `context`: place in the training.

        The threshold is the least nonzero magnitude of the reading. If `limit` has clipped this magnitude, the
        threshold is the percentile of the candidate."""
        seen = flattened(observed, context.lead).abs()
        least = seen.where(seen > 0, torch.inf).amin(-1)
        shortened = least >= self.limit * (1 - 1e-6)
        bound = torch.where(shortened, self._cutoff(tensors, context.lead).detach(), least)
        return {
            name: torch.where(observed[name] != 0, self._limited(tensor), tensor - tensor.clamp(-most, most))
            for name, tensor in tensors.items()
            for most in (broadcast(bound, tensor),)
        }

    def _limited(self, tensor: Tensor) -> Tensor:
        return tensor.clamp(-self.limit, self.limit)

    def _cutoff(self, tensors: Tensors, lead: int) -> Tensor:
        """Return the percentile of each row's magnitudes, (*lead); a magnitude that is not finite counts as the
        largest."""
        vectors = flattened(tensors, lead).abs().nan_to_num(nan=torch.inf)
        place = self.percentile / 100 * (vectors.shape[-1] - 1)
        below, part = int(place), place - int(place)
        low = kth_smallest(vectors, below + 1)[..., 0]
        if not part:
            return low
        high = kth_smallest(vectors, below + 2)[..., 0]
        return torch.where(high.isinf(), low, low + part * (high - low))


@dataclass(frozen=True, slots=True, kw_only=True)
class NvflarePercentile(Defense):
    """Zero the smallest `percentile` % of the coordinates of a client's weight difference per local step, and limit the
    others to ±`gamma`. The sum over steps is sent.

    The defense follows the code, not the code's comment, by which coordinates below `gamma` become zero. The defaults
    keep 90 % of the coordinates. No noise is added, hence no ε, although the filter is called a privacy filter.
    Departure: a parameter without axes is treated as any other (NVFLARE neither zeroes nor limits such a parameter)."""

    reference = "NVFLARE 2.9, nvflare/app_common/filters/percentile_privacy.py; after Shokri & Shmatikov 2015"
    stages = ("client",)
    strength = Strength("percentile", 10, 99.99, "log-rest", whole=100)

    percentile: float = parameter(
        10.0,
        "coordinates with magnitude below this percentile become zero",
        unit="%",
        source="NVFLARE",
        low=0,
        high=100,
    )
    gamma: float = parameter(
        0.01, "limit on magnitudes", unit="of the weight difference per local step", source="NVFLARE", above=0
    )

    def transforms(self, setting: Setting) -> StageTransforms:
        limit = self.gamma * setting.steps / setting.weight_step
        return {"client": (KeepAbovePercentile(percentile=self.percentile, limit=limit),)}
