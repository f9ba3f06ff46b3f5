"""Gradient matching by L-BFGS, as in the published loops around `torch.optim.LBFGS`."""

from dataclasses import dataclass
from typing import Literal

from bench.attacks.search.matching import MatchingAttack
from bench.attacks.solvers.base import RowLimits
from bench.attacks.solvers.lbfgs import Lbfgs
from bench.parameters import parameter
from bench.trip import Budget


@dataclass(frozen=True, kw_only=True)
class LbfgsMatching(MatchingAttack):
    """Base class for attacks by gradient matching with L-BFGS, such as `idlg`; default parameters are those of the
    published attack code."""

    knowledge = ("plain", "adaptive")

    outer: int = parameter(300, "limit on outer steps", unit="20 evaluations", source="published loop", low=1)
    history: int = parameter(100, "pairs kept by L-BFGS", source="published loop", low=1)
    line_search: Literal["none", "backtracking"] = parameter(
        "none",
        "full steps as published; or ours: shorter steps, preconditioned inputs, normalised losses",
        source="published loop",
    )
    restarts: int = parameter(0, "fresh starts within the budget", source="published loop", low=0)

    @property
    def preconditioned(self) -> bool:
        """True if the solver works on preconditioned inputs and normalised losses, which our line search "backtracking"
        needs; False for the published full steps."""
        return self.line_search == "backtracking"

    def solver(self, budget: Budget) -> Lbfgs:
        """Return L-BFGS with this attack's parameters; its history has at most `budget.evaluations` pairs."""
        return Lbfgs(history=min(self.history, budget.evaluations), line_search=self.line_search)

    def limits(self) -> RowLimits:
        """Return the solver's limits: 20 evaluations per outer step, and the restarts."""
        return RowLimits(evaluations=20 * self.outer, restarts=self.restarts)
