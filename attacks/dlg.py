"""DLG: inputs and soft labels together, by L-BFGS on the squared distance."""

from dataclasses import dataclass
from typing import Literal

from bench.attacks.search.matching import MatchingAttack, Parts
from bench.attacks.solvers.base import RowLimits
from bench.attacks.solvers.lbfgs import Lbfgs
from bench.parameters import parameter
from bench.trip import Budget, Reading


@dataclass(frozen=True, kw_only=True)
class Dlg(MatchingAttack):
    """Deep leakage from gradients: ‖∇L(x', softmax(y')) - g‖² over x' and y'."""

    reference = "Zhu et al. 2019"
    knowledge = ("plain", "adaptive")

    outer: int = parameter(300, "outer steps at most", unit="20 evaluations", source="Zhu et al. 2019", low=1)
    history: int = parameter(100, "pairs kept by L-BFGS", source="Zhu et al. 2019", low=1)
    line_search: Literal["none", "backtracking"] = parameter(
        "none",
        "full steps as published; or ours: shorter ones, preconditioned inputs, normalised losses",
        source="Zhu et al. 2019",
    )
    restarts: int = parameter(0, "fresh starts inside the budget", source="Zhu et al. 2019", low=0)

    def parts(self, reading: Reading, budget: Budget) -> Parts:
        del reading
        return Parts(
            distance="l2",
            start="gaussian",
            labels="joint",
            solver=Lbfgs(history=min(self.history, budget.evaluations), line_search=self.line_search),
            preconditioned=self.line_search == "backtracking",
            limits=RowLimits(evaluations=20 * self.outer, restarts=self.restarts),
        )
