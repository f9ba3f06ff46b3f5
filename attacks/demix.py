"""Demix: the most probable originals of mixtures that were trained on."""

from dataclasses import dataclass, replace
from functools import partial

import torch

from bench.attacks.base import Attack, Objective
from bench.attacks.matching import claim
from bench.attacks.parts.hypotheses import label_hypotheses
from bench.attacks.parts.label_rules import last_layer
from bench.attacks.parts.mixtures import Mixed
from bench.attacks.parts.objective import mean_observation, observations
from bench.attacks.parts.prior import NoiseModel, Prior
from bench.attacks.parts.rescale import rescaled
from bench.attacks.parts.space import public_space
from bench.attacks.probable import mismatch_of, starts_worth, ways
from bench.attacks.problem import MatchingProblem
from bench.attacks.solvers.lbfgs import Lbfgs
from bench.attacks.staged import staged
from bench.parameters import parameter
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction

_HISTORY = 100
_LEAST_PUBLIC = 3  # examples


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

    starts: int = parameter(
        4, "starts inside the budget, while none explains the reading", source="ours", low=1
    )

    tolerance: float = parameter(
        1e-9, "of the zero-gradient loss: a reading is done below", source="ours", low=0.0, high=1.0
    )

    def refuses(self, reading: Reading) -> str | None:
        if reading.linked != "vector":
            return "it matches whole vectors, and this reading's coordinates are not linked"
        if reading.description is None or not reading.description.mixed:
            return "nothing was mixed here that it could take apart"
        if reading.examples < 2:
            return "a single mixture does not tell what it is of"
        if reading.labels is None and last_layer(reading.model, reading.classes) is None:
            return "the model has no last linear layer to read labels off; grant labels"
        if len(reading.public_inputs) < _LEAST_PUBLIC:
            return f"it takes the law of inputs from public examples; give at least {_LEAST_PUBLIC}"
        return None

    def objective(self, reading: Reading) -> Objective:
        reading = rescaled(reading)
        return partial(mismatch_of(reading), observations(reading), differentiable=False)

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        reading = rescaled(reading)
        observed, mismatch, space = observations(reading), mismatch_of(reading), public_space(reading)
        hypotheses = label_hypotheses(reading, mean_observation(observed), self.starts, key)
        cost = reading.steps if mismatch.unrolled else 1
        problem = MatchingProblem(
            mismatch=mismatch, observed=observed, start_kind="grey", prior=Prior(), key=key,
            labels=hypotheses[:, 0], noise=NoiseModel.of(reading, len(observed)),
            space=Mixed(space, reading.examples), mixed=True,
        )  # fmt: skip
        evaluations = max(1, budget.evaluations // cost)
        starts, noise = starts_worth(reading, evaluations, self.starts), problem.noise
        each = ways(reading, space, noise.variance, evaluations // starts, key, bound=noise.bound)
        apart = tuple(
            tuple(replace(stage, space=Mixed(stage.space, reading.examples)) for stage in way) for way in each
        )
        solver = Lbfgs(history=min(_HISTORY, evaluations), line_search="backtracking")
        solution = staged(
            problem, hypotheses, solver, apart,
            starts=starts, stop=self.tolerance, budget=replace(budget, evaluations=evaluations),
        )  # fmt: skip
        rows = torch.arange(len(reading))
        problem = replace(problem, labels=hypotheses[rows, solution.runs])
        return claim(problem, solution, solver, cost, ())
