"""iDLG: infer the label from the last layer's gradient, then optimise the inputs as DLG does."""

from dataclasses import dataclass, replace

from bench.attacks.search.lbfgs_matching import LbfgsMatching
from bench.attacks.search.matching import Parts
from bench.parameters import parameter
from bench.trip import Budget, Reading


@dataclass(frozen=True, kw_only=True)
class IDlg(LbfgsMatching):
    """Improved DLG: minimise ‖∇L(x', y) - g‖² (L: loss, g: update) over x', with the label y inferred from g."""

    reference = "Zhao et al. 2020"

    stop_loss: float = parameter(
        1e-6,
        "stop below this loss, compared every 10 outer steps; with our step rule the normalised loss",
        source="Zhao et al. 2020",
        low=0,
    )

    def parts(self, reading: Reading, budget: Budget) -> Parts:
        return Parts(
            distance="l2",
            start="gaussian",
            labels="inferred",
            solver=self.solver(budget),
            preconditioned=self.preconditioned,
            limits=replace(self.limits(), stop_loss=self.stop_loss, look_every=200),
        )
