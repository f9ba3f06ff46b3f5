"""MAP: the most probable examples, given the reading and the law of public examples."""

from dataclasses import dataclass, replace
from functools import partial

import torch

from bench.attacks.base import Attack, Objective
from bench.attacks.matching import claim
from bench.attacks.parts.hypotheses import label_hypotheses
from bench.attacks.parts.label_rules import last_layer
from bench.attacks.parts.objective import mean_observation, observations
from bench.attacks.parts.prior import NoiseModel, Prior
from bench.attacks.parts.repeats import distinct_examples
from bench.attacks.parts.rescale import rescaled
from bench.attacks.parts.scale import blind_to_scale, usual_brightness
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
_SCALED = "the model does not see the scale of its inputs: each picture is as bright as public ones"


@dataclass(frozen=True, kw_only=True)
class Map(Attack):
    """min ‖D(∇L(x', y)) - g‖² + 2v·½‖u‖², x' = mean + A u, A Aᵀ the covariance of public examples.

    v is the variance of the described noise; without one it is estimated from each stage's residual, and goes to zero
    with it.  ReLUs are softened first and get their kink back in stages; a softened model's gradient is of another
    length, so the angle is matched until the last stage, where no noise is described.  Without ReLUs every second
    start on a single example begins by the angle: where the model is sure of it, the gradient is faint, and the
    distance misleads.
    """

    reference = "ours; as an estimator: maximum a posteriori"
    knowledge = ("plain", "adaptive")
    mergeable = True

    starts: int = parameter(
        3, "starts inside the budget, while none explains the reading", source="ours", low=1
    )

    tolerance: float = parameter(
        1e-9, "of the zero-gradient loss: a reading is done below", source="ours", low=0.0, high=1.0
    )

    def refuses(self, reading: Reading) -> str | None:
        if reading.linked != "vector":
            return "it matches whole vectors, and this reading's coordinates are not linked"
        if reading.labels is None and last_layer(reading.model, reading.classes) is None:
            return "the model has no last linear layer to read labels off; grant labels, or take dlg"
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
            labels=hypotheses[:, 0],
            noise=NoiseModel.of(reading, len(observed)), space=space, distinct=distinct_examples(reading),
        )  # fmt: skip
        evaluations, starts = max(1, budget.evaluations // cost), self.starts
        starts = starts_worth(reading, evaluations, starts)
        noise = problem.noise
        each = ways(reading, space, noise.variance, evaluations // starts, key, bound=noise.bound)
        solver = Lbfgs(history=min(_HISTORY, evaluations), line_search="backtracking")
        solution = staged(
            problem, hypotheses, solver, each,
            starts=starts, stop=self.tolerance, budget=replace(budget, evaluations=evaluations),
        )  # fmt: skip
        rows = torch.arange(len(reading))
        problem = replace(problem, labels=hypotheses[rows, solution.runs])
        result = claim(problem, solution, solver, cost, ())
        if not blind_to_scale(reading):
            return result
        way = result.trajectory
        return replace(
            result, inputs=usual_brightness(result.inputs, reading), notes=(*result.notes, _SCALED),
            trajectory=None if way is None else usual_brightness(way, reading),
        )  # fmt: skip
