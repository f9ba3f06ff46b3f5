"""GradInv after compensation: the attacker removes an update's noise part, as Risk-balanced's server does."""

from dataclasses import dataclass, replace

import torch

from bench.attacks.base import Objective
from bench.attacks.gradinv import GradInv
from bench.parameters import parameter
from bench.rng import Key
from bench.rows import flattened, unflattened
from bench.spectrum import without_noise
from bench.trip import Budget, Reading, Reconstruction


@dataclass(frozen=True, kw_only=True)
class CompensatedGradInv(GradInv):
    """The abuse of compensation that Risk-balanced §5C fears: remove from a client's update the directions with the
    variance of pure noise, as Risk-balanced's server does with the mean; then run GradInv on the rest. The noise's
    variance is public."""

    reference = "Risk-balanced §5C"
    knowledge = ("plain",)

    variance: float = parameter(
        3e-3,
        "noise variance of a coordinate, γσ² (with a clip B: γσ²B²)",
        unit="of the update, squared",
        source="Risk-balanced §6",
        low=0,
    )
    quotient: float = parameter(
        10.0, "Q = v/w, rows over columns of the update as a matrix", source="Risk-balanced Table III", low=1
    )
    tolerance: float = parameter(0.2, "widening of the noise interval, at both edges", source="ours", low=0, high=0.99)

    def objective(self, reading: Reading) -> Objective:
        return super().objective(self._compensated(reading))

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        return super().reconstruct(self._compensated(reading), budget, key)

    def _compensated(self, reading: Reading) -> Reading:
        """Return the batch with compensated updates. An infinite update, or an update of noise only, stays."""
        seen = flattened(reading.values, 2)
        finite = seen.isfinite().all(-1, keepdim=True)
        kept = without_noise(
            seen.where(finite, 0.0), variance=self.variance, quotient=self.quotient, tolerance=self.tolerance
        )
        # removed directions leave rounding errors
        useful = finite & (kept.norm(dim=-1, keepdim=True) > 1e-3 * seen.norm(dim=-1, keepdim=True))
        return replace(reading, values=unflattened(torch.where(useful, kept, seen), reading.values, 2))
