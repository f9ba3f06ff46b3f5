"""An attack of one's own: absolute distance, Adam, a smoothness prior."""

from dataclasses import dataclass

from bench.attacks.search.matching import MatchingAttack, Parts
from bench.attacks.search.prior import Prior
from bench.attacks.solvers.adam import Adam
from bench.attacks.solvers.base import RowLimits
from bench.parameters import parameter


@dataclass(frozen=True, kw_only=True)
class SmoothMatch(MatchingAttack):
    """Match by absolute distance; penalise differences of neighbouring pixels."""

    reference = "my own"
    knowledge = ("plain", "adaptive")
    rate: float = parameter(0.05, "step size of Adam", above=0)
    smooth: float = parameter(1e-4, "weight of the total variation", low=0)

    def parts(self, reading, budget):
        return Parts(
            distance="l1",
            start="grey",
            labels="inferred",
            solver=Adam(rate=self.rate, box=(0.0, 1.0)),
            limits=RowLimits(evaluations=budget.evaluations),
            prior=Prior(total_variation=self.smooth),
        )
