"""NVFLARE's sparse vector filter: a noisy choice of coordinates, limited to ±gamma, with Laplace noise."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bench.defenses.base import Context, Defense, Setting, Shown, StageTransforms, State, Tensors, Transform
from bench.defenses.ranges import positive
from bench.defenses.strength import Strength
from bench.defenses.transforms.noise import LaplaceNoise
from bench.parameters import parameter
from bench.rows import flattened, kth_smallest, unflattened

_TINY = 1e-300  # least positive probability
_ZERO = 1e-20  # kept zero, relative to the limit


@dataclass(frozen=True, slots=True, kw_only=True)
class ChooseByThreshold(Transform):
    """Choose coordinates by the sparse vector technique, as NVFLARE does: about a `fraction` of a row's n coordinates
    (a client's tensors) are kept, limited to ±`limit`; the others become zero. c = ⌈`fraction`·n⌉.

    1. The threshold is `tau` plus Laplace noise with scale `limit`/ε₁.
    2. In each pass, every coordinate w that is not yet accepted is accepted if |w|, limited to `limit`, plus new
       Laplace noise with scale 2c·`limit`/ε₂ reaches the threshold. The passes end once c coordinates are accepted.
    3. c draws choose among the accepted coordinates.

    ε₁ + ε₂ = `epsilon`, with ε₂ = (2c)^⅔·ε₁. The pass in which a coordinate is accepted has a geometric distribution,
    so a single uniform number gives the pass. A kept zero becomes 1e-20·`limit`, so that only the coordinates that are
    not kept are zero."""

    random: ClassVar[bool] = True
    reads: ClassVar[Shown] = "zeros"

    fraction: float
    """Share of the coordinates that are drawn."""
    epsilon: float
    """ε₁ + ε₂."""
    limit: float
    """Largest magnitude, in units of the tensors."""
    tau: float
    """Threshold before noise, in units of the tensors."""
    replace: bool
    """True draws with replacement: fewer than c different coordinates are kept."""

    def __post_init__(self) -> None:
        positive("fraction", self.fraction)
        positive("epsilon", self.epsilon)
        positive("limit", self.limit)

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        vectors = flattened(tensors, context.lead).double()
        start = {"threshold": vectors.new_full((*vectors.shape[:-1], 1), self.tau)}
        noise = LaplaceNoise(scale=self._scales(vectors.shape[-1])[0])
        chance = self._chance(vectors, noise.apply(start, context)["threshold"])
        uniform = context.draws.uniform("passes", vectors).clamp_min(torch.finfo(torch.float32).tiny)
        passes = (uniform.log() / torch.log1p(-chance).clamp_max(-_TINY)).ceil().clamp_min(1)
        count = self._count(vectors.shape[-1])
        accepted = passes <= kth_smallest(passes, count)
        chosen = unflattened(self._chosen(accepted, count, context), tensors, context.lead)
        return {
            name: value.where(value != 0, _ZERO * self.limit).where(chosen[name], 0.0)
            for name, value in self._limited(tensors).items()
        }

    @property
    def keeps(self) -> tuple[Shown, ...]:
        return ("zeros",)

    def expected(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        """Return the transform's output for an attacker's candidate gradients `tensors`, averaged over the random
        choice, and the unchanged `state`: each coordinate within ±`limit`, times its probability to be kept. The
        probability is computed for a threshold without noise. `context`: place in the training."""
        vectors = flattened(tensors, context.lead).detach().double()
        chance, count = self._chance(vectors, vectors.new_full((1,), self.tau)), self._count(vectors.shape[-1])
        once = chance.sum(-1, keepdim=True).clamp_min(_TINY)
        accepted = once.clamp_min(count)
        drawn = 1 - (1 - 1 / accepted) ** count if self.replace else count / accepted
        kept = unflattened((chance * accepted / once * drawn).clamp_max(1), tensors, context.lead)
        return {name: value * kept[name].to(value) for name, value in self._limited(tensors).items()}, state

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor]:
        """Simulate the transform on an attacker's candidate gradients `tensors`, with the choice that the attacked
        reading `observed` shows: the candidate within ±`limit` at the reading's nonzero coordinates, and zero at the
        others. The choice itself is not used as evidence: its noise, with a scale of 2c/ε₂ times the largest magnitude,
        hides the values. `context`: place in the training."""
        return {name: value.where(observed[name] != 0, 0.0) for name, value in self._limited(tensors).items()}

    def _count(self, size: int) -> int:
        return min(size, math.ceil(size * self.fraction))

    def _scales(self, size: int) -> tuple[float, float]:
        """Return the scales of the noise on the threshold and on the magnitudes, for `size` coordinates."""
        count = self._count(size)
        first = self.epsilon / (1 + (2 * count) ** (2 / 3))
        return self.limit / first, 2 * self.limit * count / (self.epsilon - first)

    def _chance(self, vectors: Tensor, threshold: Tensor) -> Tensor:
        """Return the probability that a pass accepts each coordinate of `vectors`, given the noisy `threshold`."""
        gap = (threshold - vectors.abs().clamp_max(self.limit)) / self._scales(vectors.shape[-1])[1]
        beyond = (-gap.abs()).exp() / 2
        return beyond.where(gap >= 0, 1 - beyond)

    def _chosen(self, accepted: Tensor, count: int, context: Context) -> Tensor:
        """Return the coordinates that `count` draws from the `accepted` coordinates choose, as a mask."""
        chosen = torch.zeros_like(accepted)
        if not self.replace:
            lots = context.draws.uniform("chosen", accepted.double()).where(accepted, -1.0)
            return chosen.scatter(-1, lots.topk(count, dim=-1).indices, True)
        before = accepted.cumsum(-1)
        uniform = context.draws.uniform("chosen", accepted[..., :count].double())
        places = (uniform * before[..., -1:]).floor() + 1
        return chosen.scatter(-1, torch.searchsorted(before, torch.minimum(places.long(), before[..., -1:])), True)

    def _limited(self, tensors: Tensors) -> dict[str, Tensor]:
        return {name: value.clamp(-self.limit, self.limit) for name, value in tensors.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class NvflareSvt(Defense):
    """Send a random selection of large coordinates with noise, as NVFLARE's filter by the sparse vector technique:
    about a `fraction` of the coordinates of a client's weight difference per local step, chosen by noisy comparisons
    with a threshold, limited to ±`gamma`, and with Laplace noise of scale 2·`gamma`/`noise_var`.

    The library states a pure ε of `epsilon` + c·`noise_var` for a message, with c = ⌈`fraction`·n⌉ of n coordinates:
    1000.1 for 10⁵ coordinates at the defaults. The code does not support this claim: the theorem ends after c accepted
    coordinates, but the code accepts any number in a pass and then draws c. Proved is ε₁ + ε₂·n/c + c·`noise_var` for a
    replaced client, as each of n coordinates is accepted once at most. No ε of this form enters the bench's accounts.

    Departure: a parameter without axes is treated as any other (NVFLARE sends such a parameter without noise)."""

    reference = "NVFLARE 2.9, nvflare/app_common/filters/svt_privacy.py; Lyu, Su, Li 2017 (sparse vector technique)"
    stages = ("client",)
    strength = Strength("noise_var", 1e3, 1e-3)
    no_epsilon = "its pure ε is of a whole message, and grows with the number of coordinates: no useful bound"

    fraction: float = parameter(0.1, "share of the coordinates that are drawn", source="NVFLARE", above=0, high=1)
    epsilon: float = parameter(0.1, "stated ε of the choice of coordinates", source="NVFLARE", above=0)
    noise_var: float = parameter(
        0.1, "stated ε of the value of a sent coordinate; no variance, despite the name", source="NVFLARE", above=0
    )
    gamma: float = parameter(
        1e-5, "limit on magnitudes", unit="of the weight difference per local step", source="NVFLARE", above=0
    )
    tau: float = parameter(1e-6, "threshold", unit="of the weight difference per local step", source="NVFLARE")
    replace: bool = parameter(True, "True draws coordinates with replacement", source="NVFLARE")

    def transforms(self, setting: Setting) -> StageTransforms:
        unit = setting.steps / setting.weight_step
        choice = ChooseByThreshold(
            fraction=self.fraction,
            epsilon=self.epsilon,
            limit=self.gamma * unit,
            tau=self.tau * unit,
            replace=self.replace,
        )
        return {"client": (choice, LaplaceNoise(scale=2 * self.gamma * unit / self.noise_var, on="nonzero"))}
