"""CPL: the label read off the gradient, a patterned start; squared distance by L-BFGS."""

from dataclasses import dataclass
from typing import Literal

from bench.attacks.search.matching import MatchingAttack, Parts
from bench.attacks.search.prior import Prior
from bench.attacks.search.start import Start
from bench.attacks.solvers.base import RowLimits
from bench.attacks.solvers.lbfgs import Lbfgs
from bench.parameters import parameter
from bench.trip import Budget, Reading

_DEPARTURES = (
    "no squared difference of predictions, which the authors add at 64 pixels and more and for tanh and ReLU",
    "L-BFGS at every size, where the authors take AdamW at 64 pixels and more",
)


@dataclass(frozen=True, kw_only=True)
class Cpl(MatchingAttack):
    """Client privacy leakage: ‖∇L(x', y) - g‖² from a tile of half the height and width."""

    reference = "Wei et al. 2020"
    knowledge = ("plain", "adaptive")

    outer: int = parameter(300, "outer steps at most", unit="20 evaluations", source="Wei et al. 2020", low=1)
    start: Start = parameter("tile-2", "first candidate; tables start uniform", source="Wei et al. 2020")
    history: int = parameter(100, "pairs kept by L-BFGS", source="Wei et al. 2020", low=1)
    line_search: Literal["none", "backtracking"] = parameter(
        "none",
        "full steps as published; or ours: shorter ones, preconditioned inputs, normalised losses",
        source="Wei et al. 2020",
    )
    restarts: int = parameter(0, "fresh starts inside the budget", source="Wei et al. 2020", low=0)
    l2: float = parameter(0.0, "weight of the mean square of the candidate", source="Wei et al. 2020", low=0)
    l1: float = parameter(0.0, "weight of its mean magnitude", source="Wei et al. 2020", low=0)

    def parts(self, reading: Reading, budget: Budget) -> Parts:
        tiled = self.start.startswith("tile") and reading.kind == "table"
        return Parts(
            departures=_DEPARTURES,
            distance="l2",
            start="uniform" if tiled else self.start,
            labels="inferred",
            solver=Lbfgs(history=min(self.history, budget.evaluations), line_search=self.line_search),
            preconditioned=self.line_search == "backtracking",
            limits=RowLimits(evaluations=20 * self.outer, restarts=self.restarts),
            prior=Prior(squared=self.l2, absolute=self.l1),
        )
