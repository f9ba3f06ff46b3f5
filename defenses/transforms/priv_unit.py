"""PrivUnit: a random unit vector in place of a direction, from a cap around it or from the rest of the sphere."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import betainc, betaincinv, betaln
from torch import Tensor

from bench.defenses.base import AddedNoise, Context, State, Tensors, Transform
from bench.defenses.ranges import positive
from bench.rows import flattened, unflattened

_SHARES = 32  # trial splits of ε
_NARROWEST = 1 - 1e-12  # γ of the smallest cap
_TINY = 1e-290  # smaller shares of the sphere are computed as logarithms


@dataclass(frozen=True, slots=True)
class Cap:
    """A cap of the unit sphere in d dimensions around a direction u: all v with ⟨v, u⟩ ≥ γ."""

    dimension: int
    """d."""
    least: float
    """γ ≥ 0, the least inner product with u."""
    odds: float
    """log(p/(1 - p)), with the probability p of a draw from the cap."""
    log_share: float
    """log P, with the cap's share P of the sphere's area."""

    @property
    def inside(self) -> float:
        """p, the probability of a draw from the cap."""
        return math.exp(self.log_inside)

    @property
    def log_inside(self) -> float:
        """log p."""
        return -float(np.logaddexp(0.0, -self.odds))

    @property
    def log_outside(self) -> float:
        """log(1 - p)."""
        return -float(np.logaddexp(0.0, self.odds))

    @property
    def log_rest(self) -> float:
        """log(1 - P)."""
        return math.log1p(-math.exp(self.log_share))

    @property
    def epsilon(self) -> float:
        """ε of a draw, exactly: log of the density inside over the density outside, p(1 - P)/((1 - p)P)."""
        return self.odds + self.log_rest - self.log_share

    @property
    def mean(self) -> float:
        """m, the mean of ⟨v, u⟩ over draws v (Bhowmick et al. 2018, eq. 15): (p/P - (1 - p)/(1 - P))·E, with E =
        (1 - γ²)^α / (2α B(1/2, α)) and α = (d - 1)/2."""
        alpha = (self.dimension - 1) / 2
        log_e = alpha * math.log1p(-(self.least**2)) - math.log(2 * alpha) - float(betaln(0.5, alpha))
        inside = math.exp(log_e + self.log_inside - self.log_share)
        return inside - math.exp(log_e + self.log_outside - self.log_rest)


def log_share(dimension: int, least: float) -> float:
    """Return log P(⟨v, u⟩ ≥ γ) for a uniform v on the unit sphere: half the regularised incomplete beta function of
    1 - γ² with the parameters α = (d - 1)/2 and 1/2.

    - `dimension`: d, at least 2.
    - `least`: γ, in [0, 1)."""
    alpha, x = (dimension - 1) / 2, 1 - least**2
    share = 0.5 * float(betainc(alpha, 0.5, x))
    if share > _TINY:
        return math.log(share)
    terms = int(40 / -math.log(x)) + 2  # of the hypergeometric series 2F1(α + 1/2, 1; α + 1; x)
    n = np.arange(terms)
    series = np.cumprod(np.concatenate([[1.0], x * (alpha + 0.5 + n) / (alpha + 1 + n)])).sum()
    return float(
        alpha * math.log(x) + 0.5 * math.log1p(-x) - math.log(2 * alpha) - betaln(alpha, 0.5) + math.log(series)
    )


@lru_cache(maxsize=64)
def cap_of(dimension: int, epsilon: float) -> Cap:
    """Return the cap and the probability p with the largest mean m, hence the least variance, among 32 splits of
    `epsilon` into log(p/(1 - p)) and log((1 - P)/P), the cap's share. `dimension`: d, at least 2."""
    return max((_split(dimension, epsilon, part / _SHARES) for part in range(_SHARES)), key=lambda cap: cap.mean)


def _split(dimension: int, epsilon: float, part: float) -> Cap:
    wanted = -math.log1p(math.exp(part * epsilon)) if part * epsilon < 700 else -part * epsilon  # log P
    least = 0.0
    if part and log_share(dimension, _NARROWEST) >= wanted:
        least = _NARROWEST
    elif part:
        least = float(brentq(lambda gamma: log_share(dimension, gamma) - wanted, 0.0, _NARROWEST, xtol=1e-15))
    share = log_share(dimension, least)
    odds = epsilon - (math.log1p(-math.exp(share)) - share)  # the rest of ε, whatever the root's rounding
    return Cap(dimension, least, odds, share)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitReports(Transform):
    """Replace each row (a client's update, all tensors as a vector x) by C·v/m: v is a random unit vector near the
    direction x/‖x‖, and m the mean of ⟨v, x/‖x‖⟩, so that the report's mean is C·x/‖x‖. v is uniform on a cap with
    probability p, else uniform on the rest of the sphere (Bhowmick et al. 2018, algorithm 1, PrivUnit_2). A row of
    zeros has the direction (1, …, 1)/√d."""

    random: ClassVar[bool] = True

    epsilon: float
    """ε of a report, pure."""
    length: float
    """C, the length of a report's mean."""

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon)
        positive("length", self.length)

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        direction = self._directions(tensors, context.lead)
        first = next(iter(tensors.values()))
        row = first.reshape(*first.shape[: context.lead], -1)[..., :1]
        coin = context.draws.uniform("cap", row)
        place = context.draws.uniform("place", row)
        normal = {name: context.draws.normal(name, value) for name, value in tensors.items()}
        cap = self._cap(direction)
        other = flattened(normal, context.lead).double()
        other = other - (other * direction).sum(-1, keepdim=True) * direction
        other = other / other.norm(dim=-1, keepdim=True).clamp_min(1e-300)
        along = _places(cap, coin.double().cpu().numpy(), place.double().cpu().numpy())
        t = torch.from_numpy(along).to(direction)
        report = t * direction + (1 - t.square()).clamp_min(0).sqrt() * other
        return unflattened((self.length / cap.mean * report).to(first), tensors, context.lead)

    def expected(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        """Return the mean report of the candidates `tensors`, C·x/‖x‖, and the unchanged `state`. `context`: place in
        the training."""
        first = next(iter(tensors.values()))
        mean = self.length * self._directions(tensors, context.lead)
        return unflattened(mean.to(first), tensors, context.lead), state

    def noise(self, context: Context, state: State) -> AddedNoise | None:
        """Return the noise that attackers assume: the mean square of a report's coordinate, (C/m)²/d, which exceeds the
        variance by the mean's square. None if the number d of coordinates is unknown. `context`: place in the training,
        with the round's weights; `state` is not used."""
        public = context.setting.public
        weights = context.weights if context.weights is not None else None if public is None else public.weights
        if weights is None:
            return None
        size = sum(value.numel() for value in weights.values())
        return AddedNoise(variance=(self.length / cap_of(size, self.epsilon).mean) ** 2 / size, bound=True)

    def log_density(self, tensors: Tensors, observed: Tensors, context: Context) -> Tensor:
        """Return the exact log density of the reports `observed` for each row (client) of the candidates after
        `expected`, `tensors`: log(p/P) inside the cap around the candidate's direction, log((1 - p)/(1 - P)) outside.
        `context`: place in the training."""
        candidate, seen = self._directions(tensors, context.lead), self._directions(observed, context.lead)
        cap = self._cap(candidate)
        inside = (candidate * seen).sum(-1) >= cap.least
        high = cap.log_inside - cap.log_share
        low = cap.log_outside - cap.log_rest
        return torch.where(inside, high, low).to(candidate)

    def _cap(self, direction: Tensor) -> Cap:
        return cap_of(direction.shape[-1], self.epsilon)

    def _directions(self, tensors: Tensors, lead: int) -> Tensor:
        vectors = flattened(tensors, lead).double()
        vectors = vectors / vectors.abs().amax(-1, keepdim=True).clamp_min(1e-300)  # squares of any size stay finite
        norm = vectors.norm(dim=-1, keepdim=True)
        equal = torch.full_like(vectors, vectors.shape[-1] ** -0.5)
        return torch.where(norm > 0, vectors / norm.clamp_min(1e-300), equal)


def _places(cap: Cap, coin: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Return ⟨v, u⟩ for uniform numbers in [0, 1): `coin` decides for the cap, `place` is the position's rank within
    the cap, from its top, or within the rest, from its bottom. Arrays have equal shapes."""
    out = np.empty_like(place)
    alpha = (cap.dimension - 1) / 2
    for at, rank in np.ndenumerate(place):
        if coin[at] < cap.inside:
            wanted = cap.log_share + math.log(max(rank, 1e-300))
            if wanted > math.log(_TINY):  # 1 - t² is a beta variable below 1 - γ²
                out[at] = math.sqrt(max(0.0, 1 - float(betaincinv(alpha, 0.5, 2 * math.exp(wanted)))))
            else:
                out[at] = brentq(
                    lambda t, wanted=wanted: log_share(cap.dimension, t) - wanted, cap.least, 1 - 1e-15, xtol=1e-15
                )
        else:
            below = rank * -math.expm1(cap.log_share)  # distribution function of t
            half = 2 * below - 1
            out[at] = math.copysign(math.sqrt(float(betaincinv(0.5, alpha, abs(half)))), half)
    return out
