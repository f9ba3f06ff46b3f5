"""iDLG: the label read off the last layer's gradient, then DLG on the inputs alone."""

from dataclasses import dataclass
from typing import Literal

from bench.attacks.search.matching import MatchingAttack, Parts
from bench.attacks.solvers.base import RowLimits
from bench.attacks.solvers.lbfgs import Lbfgs
from bench.parameters import parameter
from bench.trip import Budget, Reading


@dataclass(frozen=True, kw_only=True)
class IDlg(MatchingAttack):
    """Improved DLG: ‖∇L(x', y) - g‖² over x', y read off the gradient."""

    reference = "Zhao et al. 2020"
    knowledge = ("plain", "adaptive")

    outer: int = parameter(300, "outer steps at most", unit="20 evaluations", source="Zhao et al. 2020", low=1)
    stop_loss: float = parameter(
        1e-6,
        "stop below this loss, compared every 10 outer steps; with our step rule the normalised loss",
        source="Zhao et al. 2020",
        low=0,
    )
    history: int = parameter(100, "pairs kept by L-BFGS", source="Zhao et al. 2020", low=1)
    line_search: Literal["none", "backtracking"] = parameter(
        "none",
        "full steps as published; or ours: shorter ones, preconditioned inputs, normalised losses",
        source="Zhao et al. 2020",
    )
    restarts: int = parameter(0, "fresh starts inside the budget", source="Zhao et al. 2020", low=0)

    def parts(self, reading: Reading, budget: Budget) -> Parts:
        del reading
        return Parts(
            distance="l2",
            start="gaussian",
            labels="inferred",
            solver=Lbfgs(history=min(self.history, budget.evaluations), line_search=self.line_search),
            preconditioned=self.line_search == "backtracking",
            limits=RowLimits(
                evaluations=20 * self.outer, restarts=self.restarts, stop_loss=self.stop_loss, look_every=200
            ),
        )
