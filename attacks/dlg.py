"""DLG: optimise inputs and soft labels together, by L-BFGS on the squared distance."""

from dataclasses import dataclass

from bench.attacks.search.lbfgs_matching import LbfgsMatching
from bench.attacks.search.matching import Parts
from bench.trip import Budget, Reading


@dataclass(frozen=True, kw_only=True)
class Dlg(LbfgsMatching):
    """Deep leakage from gradients: minimise ‖∇L(x', softmax(y')) - g‖² (L: loss, g: update) over x' and logits y'."""

    reference = "Zhu et al. 2019"

    def parts(self, reading: Reading, budget: Budget) -> Parts:
        return Parts(
            distance="l2",
            start="gaussian",
            labels="joint",
            solver=self.solver(budget),
            preconditioned=self.preconditioned,
            limits=self.limits(),
        )
