"""CPL: infer the label from the gradient, start from a pattern, minimise the squared distance by L-BFGS."""

from dataclasses import dataclass

from bench.attacks.search.lbfgs_matching import LbfgsMatching
from bench.attacks.search.matching import Parts
from bench.attacks.search.prior import Prior
from bench.attacks.search.start import Start
from bench.parameters import parameter
from bench.trip import Budget, Reading

_DEPARTURES = (
    "no squared difference of predictions, which the authors add at 64 pixels and more and for tanh and ReLU",
    "L-BFGS at every size, where the authors take AdamW at 64 pixels and more",
)


@dataclass(frozen=True, kw_only=True)
class Cpl(LbfgsMatching):
    """Client privacy leakage: minimise ‖∇L(x', y) - g‖² (L: loss, g: update) over the input x', with the label y
    inferred from g. The first x' is a random tile repeated 2 × 2."""

    reference = "Wei et al. 2020"

    start: Start = parameter("tile-2", "first candidate; tables start uniform", source="Wei et al. 2020")
    l2: float = parameter(0.0, "weight of the mean square of the candidate", source="Wei et al. 2020", low=0)
    l1: float = parameter(0.0, "weight of the candidate's mean magnitude", source="Wei et al. 2020", low=0)

    def parts(self, reading: Reading, budget: Budget) -> Parts:
        tiled = self.start.startswith("tile") and not reading.kind.spatial
        return Parts(
            departures=_DEPARTURES,
            distance="l2",
            start="uniform" if tiled else self.start,
            labels="inferred",
            solver=self.solver(budget),
            preconditioned=self.preconditioned,
            limits=self.limits(),
            prior=Prior(squared=self.l2, absolute=self.l1),
        )
