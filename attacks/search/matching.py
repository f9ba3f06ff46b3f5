"""Gradient matching: distance + prior + solver + start + labels, many readings side by side.

An attack of this kind says only which parts it takes, and with which numbers.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch

from bench.attacks.base import Attack, Objective
from bench.attacks.labels.infer import infer_labels
from bench.attacks.labels.rules import last_layer
from bench.attacks.objective.distance import Distance, Kind, Layers
from bench.attacks.objective.mismatch import Mismatch, by_likelihood, mean_observation, observations
from bench.attacks.objective.rescale import rescaled
from bench.attacks.search.preconditioner import preconditioner
from bench.attacks.search.prior import NoiseModel, Prior
from bench.attacks.search.problem import MatchingProblem
from bench.attacks.search.refine import refine
from bench.attacks.search.space import Diagonal
from bench.attacks.search.start import Start
from bench.attacks.solvers.base import RowLimits, Solution, Solver
from bench.attacks.solvers.loop import minimise
from bench.parameters import parameter
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction

# Of the zero-gradient loss: labels in a wrong order explain an update to 1e-2, the right one better.
_WRONG_ORDER = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What one attack is made of.

    `labels`: "joint" optimises softmax(logits) with the inputs (Zhu et al. 2019), "inferred" reads labels off the
    gradient first.  `limits` has the authors' count of evaluations, which the budget caps.  `preconditioned` gives the
    solver normalised losses and preconditioned inputs; a reading with a description always has them, but for the
    cosine distance.  `departures` say what is not the authors'.
    """

    distance: Kind
    solver: Solver[Any]
    start: Start
    labels: Literal["joint", "inferred"]
    limits: RowLimits
    departures: tuple[str, ...] = ()
    prior: Prior = Prior()
    preconditioned: bool = False


@dataclass(frozen=True, kw_only=True)
class MatchingAttack(Attack):
    """An attack by gradient matching; these options are not its authors', and off as published."""

    mergeable = True

    layers: Layers = parameter("equal", "weights of the tensors in the distance", source="ours")
    exclude: tuple[str, ...] = parameter((), "tensors left out: those whose names begin so", source="Risk-balanced")
    unknown_scale: bool = parameter(False, "the reading may be shortened by an unknown factor", source="ours")
    refine_float64: bool = parameter(False, "rows that single precision stops are continued in double", source="ours")

    local: Literal["one-gradient", "unrolled"] = parameter(
        "one-gradient",
        "how L > 1 local steps are read: their mean as one gradient, or each step simulated",
        source="Geiping et al. 2020, §6",
    )

    @abstractmethod
    def parts(self, reading: Reading, budget: Budget) -> Parts:
        """The parts, for this reading and within this budget."""

    def refuses(self, reading: Reading) -> str | None:
        if reading.linked != "vector":
            return "it matches whole vectors, and this reading's coordinates are not linked"
        inferred = reading.labels is None and self.parts(reading, Budget(evaluations=1)).labels == "inferred"
        if inferred and last_layer(reading.model, reading.classes) is None:
            return "the model has no last linear layer to read labels off; grant labels, or take dlg"
        return None

    def objective(self, reading: Reading) -> Objective:
        """The matching distance alone, without prior."""
        reading = rescaled(reading)
        mismatch = self._mismatch(self.parts(reading, Budget(evaluations=1)), reading)
        return partial(mismatch, observations(reading), differentiable=False)

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        reading = rescaled(reading)
        parts = self.parts(reading, budget)
        mismatch = self._mismatch(parts, reading)
        observed = observations(reading)
        joint = parts.labels == "joint" and reading.labels is None
        normalised = parts.preconditioned or reading.description is not None
        problem = MatchingProblem(
            mismatch=mismatch,
            observed=observed,
            start_kind=parts.start,
            prior=parts.prior,
            key=key,
            labels=None if joint else infer_labels(reading, mean_observation(observed)),
            noise=NoiseModel.of(reading, len(observed)),
            shuffled=mismatch.unrolled or (reading.description is not None and reading.description.ordered),
            space=Diagonal(preconditioner(reading, key)) if normalised and mismatch.distance.kind != "cosine" else None,
        )
        cost = reading.steps if mismatch.unrolled else 1  # a simulation of L steps counts as L evaluations
        evaluations = min(parts.limits.evaluations, budget.evaluations)
        limits = replace(parts.limits, evaluations=max(1, evaluations // cost), leave_stalled=self.refine_float64)
        if mismatch.unrolled:
            limits = replace(limits, abandon_above=_WRONG_ORDER, stalled=_WRONG_ORDER)
        rows = torch.arange(len(reading))
        solution = minimise(problem, parts.solver, limits, rows, chunk=budget.chunk, traced=budget.traced)
        if self.refine_float64:
            solution = refine(problem, parts.solver, limits, solution, budget.chunk)
        return reconstruction(problem, solution, parts.solver, cost, tuple(_departures(parts, problem, evaluations)))

    def unrolls(self, reading: Reading) -> bool:
        """Whether each local step behind this reading is simulated."""
        return self.local == "unrolled" and reading.steps > 1 and reading.senders == 1

    def _mismatch(self, parts: Parts, reading: Reading) -> Mismatch:
        """The objective of these parts."""
        distance = Distance(
            kind=parts.distance, layers=self.layers, exclude=self.exclude, unknown_scale=self.unknown_scale
        )
        return Mismatch(reading=reading, distance=by_likelihood(distance, reading), unrolled=self.unrolls(reading))


def reconstruction(
    problem: MatchingProblem, solution: Solution, solver: Solver[Any], cost: int, notes: tuple[str, ...]
) -> Reconstruction:
    """The claim; one evaluation of the solver counts as `cost`."""
    rows = torch.arange(len(solution.loss))
    inputs, logits = problem.split(solution.x)
    labels = problem.ordered_labels(rows, solution.runs) if logits is None else logits.argmax(-1)
    assert labels is not None
    labels = labels[:, : problem.examples]
    evaluations = cost * solution.evaluations
    trajectory = torch.stack([problem.split(points)[0] for points in solution.trajectory])
    final, worthless = solution.loss.cpu(), problem.zero_gradient_loss(rows).cpu()
    return Reconstruction(
        inputs=inputs.cpu(),
        labels=labels.cpu(),
        loss=final,
        evaluations=evaluations,
        outer=solver.outer(evaluations),
        restarts=solution.restarts,
        status=tuple(
            "nan" if not torch.isfinite(loss) else "diverged" if loss >= most else "ok"
            for loss, most in zip(final, worthless, strict=True)
        ),
        history=tuple(
            (cost * mark, tuple(losses)) for mark, losses in zip(solution.marks, solution.losses.tolist(), strict=True)
        ),
        trajectory=trajectory.cpu(),
        notes=notes,
    )


def _departures(parts: Parts, problem: MatchingProblem, evaluations: int) -> Iterator[str]:
    """Where this is not what the authors ran, in words for the record."""
    yield "keeps the point of the attack's least loss; the published loop keeps the last"
    if problem.space is not None:
        yield "the solver sees normalised losses and preconditioned inputs"
    yield from parts.departures
    if evaluations < parts.limits.evaluations:
        yield f"at most {evaluations} evaluations; the authors allow {parts.limits.evaluations}"
