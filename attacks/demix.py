"""Demix: find the most probable original examples behind training on mixtures (mixup)."""

from dataclasses import dataclass

from bench.attacks.base import Attack, Objective
from bench.attacks.objective.rescale import rescaled
from bench.attacks.search.probable import most_probable, objective_of, unfit
from bench.parameters import parameter
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction


@dataclass(frozen=True, kw_only=True)
class Demix(Attack):
    """Find the most probable original examples behind a reading (the observed update) whose client trained on mixtures
    (mixup).

    The attack minimises ‖D(∇L(M x, M y)) - g‖² + 2v·½‖u‖² over the originals x = mean + A u, by the variables u, and
    over the batch's mixing matrix M.

    - L is the loss, D the described defense, g the reading, y the labels.
    - v is the variance of the described noise, and A Aᵀ the covariance of public examples.
    - Each row in M is a mixture: positive shares with sum 1. The partners and shares are unknown, so a row may mix all
      originals.

    Originals with distinct labels are separated by the soft labels M y, which the last layer's gradient shows;
    originals with equal labels by the distribution of public examples. The attack refuses readings without mixtures."""

    reference = "ours; against Zhang et al. 2018 (mixup) as a defense"
    knowledge = ("adaptive",)
    mergeable = True

    starts: int = parameter(4, "starts within the budget, until one explains the reading", source="ours", low=1)

    tolerance: float = parameter(
        1e-9, "share of the zero-gradient loss at which a reading is finished", source="ours", low=0.0, high=1.0
    )

    def refuses(self, reading: Reading) -> str | None:
        if reading.description is None or not reading.description.mixed:
            return "the reading holds no mixtures to separate"
        if reading.examples < 2:
            return "a single mixture does not determine its originals"
        return unfit(reading)

    def objective(self, reading: Reading) -> Objective:
        return objective_of(reading)

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        return most_probable(rescaled(reading), budget, key, starts=self.starts, tolerance=self.tolerance, mixed=True)
