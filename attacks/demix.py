"""Demix: the most probable originals of mixtures that were trained on."""

from dataclasses import dataclass

from bench.attacks.base import Attack, Objective
from bench.attacks.objective.rescale import rescaled
from bench.attacks.search.probable import most_probable, objective_of, unfit
from bench.parameters import parameter
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction


@dataclass(frozen=True, kw_only=True)
class Demix(Attack):
    """min ‖D(∇L(M x, M y)) - g‖² + 2v·½‖u‖² over originals x = mean + A u and a mixing matrix M of a batch.

    The rows of M, a mixture each, are positive and sum to 1.  Nobody knows which examples were mixed with which shares:
    a row may mix all.  Where the originals have distinct labels, the soft labels M y of the last layer's gradient tell
    them; the rest is left to the law of public examples.  Of no other reading is there anything to take apart.
    """

    reference = "ours; against Zhang et al. 2018 (mixup) as a defense"
    knowledge = ("adaptive",)
    mergeable = True

    starts: int = parameter(4, "starts inside the budget, while none explains the reading", source="ours", low=1)

    tolerance: float = parameter(
        1e-9, "of the zero-gradient loss: a reading is done below", source="ours", low=0.0, high=1.0
    )

    def refuses(self, reading: Reading) -> str | None:
        if reading.description is None or not reading.description.mixed:
            return "nothing was mixed here that it could take apart"
        if reading.examples < 2:
            return "a single mixture does not tell what it is of"
        return unfit(reading)

    def objective(self, reading: Reading) -> Objective:
        return objective_of(reading)

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        return most_probable(rescaled(reading), budget, key, starts=self.starts, tolerance=self.tolerance, mixed=True)
