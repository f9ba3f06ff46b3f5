"""GradInv: minimise cosine distance and total variation, by signed Adam within the data's range."""

from dataclasses import dataclass
from typing import ClassVar

from bench.attacks.search.matching import MatchingAttack, Parts
from bench.attacks.search.prior import Prior
from bench.attacks.solvers.adam import Adam
from bench.attacks.solvers.base import RowLimits
from bench.parameters import parameter
from bench.trip import Budget, Reading


@dataclass(frozen=True, kw_only=True)
class GradInv(MatchingAttack):
    """Inverting gradients: minimise the cosine distance between the candidates' gradient and the observed update, plus
    the candidates' total variation, with the authors' settings."""

    reference = "Geiping et al. 2020"
    knowledge: ClassVar[tuple[str, ...]] = ("plain", "adaptive")

    iterations: int = parameter(24000, "limit", unit="evaluations", source="Geiping et al. 2020", low=1)
    rate: float = parameter(0.1, "step size of Adam; ×0.1 at 3/8, 5/8 and 7/8", source="Geiping et al. 2020", above=0)
    signed: bool = parameter(True, "take the sign of the gradient", source="Geiping et al. 2020")
    tv: float = parameter(1e-4, "weight of the total variation", source="Geiping et al. 2020", low=0)
    restarts: int = parameter(0, "fresh starts within the budget", source="Geiping et al. 2020", low=0)

    def parts(self, reading: Reading, budget: Budget) -> Parts:
        # an iteration that simulates L local steps costs L evaluations
        steps = min(self.iterations, budget.evaluations) // (reading.steps if self.unrolls(reading) else 1)
        run = max(1, steps // (self.restarts + 1))
        return Parts(
            departures=("restarts are chosen by the whole loss, the authors' without total variation",)
            if self.restarts
            else (),
            distance="cosine",
            start="gaussian",
            labels="inferred",
            solver=Adam(
                rate=self.rate,
                signed=self.signed,
                box=reading.value_range,
                milestones=tuple(int(run // part) for part in (2.667, 1.6, 1.142)),
            ),
            limits=RowLimits(evaluations=self.iterations, restarts=self.restarts, abandon_above=0.0, keep_below=0.0),
            prior=Prior(total_variation=self.tv if reading.kind.spatial else 0.0),
        )
