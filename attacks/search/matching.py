"""Gradient matching for many readings in parallel.

A matching attack chooses a distance, prior, solver, start and label treatment, with their parameters."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch

from bench.attacks.base import Attack, Objective
from bench.attacks.labels.infer import described_classes, label_notes, labels_from, unreadable
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

# Of the zero-gradient loss: labels in a wrong order explain an update down to 1e-2, the right order further.
_WRONG_ORDER = 1e-3
_STATISTICS = "BatchNorm's running statistics, sent by the client, are a term of the objective"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Components of a gradient matching attack, with their parameters: distance, solver, start, labels and prior."""

    distance: Kind
    """Kind of distance between a candidate's gradient and the reading, such as "l2" or "cosine"."""
    solver: Solver[Any]
    """Method that minimises the objective, such as L-BFGS or Adam."""
    start: Start
    """Distribution of the first candidates, such as "gaussian" or "tile-2"."""
    labels: Literal["joint", "inferred"]
    """"joint" optimises labels with the inputs, as softmax(logits) (Zhu et al. 2019). "inferred" reads labels from the
    gradient."""
    limits: RowLimits
    """Limits for the solver, with the number of evaluations in the authors' code; the attack's budget caps this number.
    """
    departures: tuple[str, ...] = ()
    """Differences from the authors' code, in words for the record."""
    prior: Prior = Prior()
    """Weights of the priors on inputs, such as total variation."""
    preconditioned: bool = False
    """True gives the solver normalised losses and preconditioned inputs. With a description of the defense, both are
    always on. With the cosine distance, inputs are never preconditioned."""


@dataclass(frozen=True, kw_only=True)
class MatchingAttack(Attack):
    """Base class for gradient matching attacks, which minimise the distance between candidates' gradients and the
    reading (the observed update). Its parameters add options to the published attacks; all are off by default."""

    mergeable = True

    layers: Layers = parameter("equal", "weights of tensors in the distance", source="ours")
    exclude: tuple[str, ...] = parameter((), "name prefixes of tensors left out", source="Risk-balanced")
    unknown_scale: bool = parameter(False, "an unknown factor may have shortened the reading", source="ours")
    refine_float64: bool = parameter(
        False, "continue rows in double precision after single precision stops", source="ours"
    )

    local: Literal["one-gradient", "unrolled"] = parameter(
        "one-gradient",
        "treatment of L > 1 local steps: their mean as a gradient, or a simulation of each step",
        source="Geiping et al. 2020, §6",
    )

    @abstractmethod
    def parts(self, reading: Reading, budget: Budget) -> Parts:
        """Return the attack's components (distance, prior, solver, start) for the batch `reading` and the limits
        `budget`."""

    def refuses(self, reading: Reading) -> str | None:
        if reading.linked != "vector":
            return "it matches whole vectors, and this reading's coordinates are not linked"
        return unreadable(reading) if self.parts(reading, Budget(evaluations=1)).labels == "inferred" else None

    def objective(self, reading: Reading) -> Objective:
        reading = rescaled(reading)
        mismatch = self._mismatch(self.parts(reading, Budget(evaluations=1)), reading)
        return partial(mismatch, observations(reading), differentiable=False)

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        reading = rescaled(reading)
        parts = self.parts(reading, budget)
        mismatch = self._mismatch(parts, reading)
        observed = observations(reading)
        joint = parts.labels == "joint" and reading.labels is None
        seen = mean_observation(observed)
        described = None if joint else described_classes(reading, seen)
        normalised = parts.preconditioned or reading.description is not None
        problem = MatchingProblem(
            mismatch=mismatch,
            observed=observed,
            start_kind=parts.start,
            prior=parts.prior,
            key=key,
            labels=None if joint else labels_from(reading, seen, described),
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
        notes = (*_departures(parts, problem, evaluations), *label_notes(reading, described))
        return reconstruction(problem, solution, parts.solver, cost, notes)

    def unrolls(self, reading: Reading) -> bool:
        """Return whether the attack simulates each local step behind the batch `reading`. Otherwise a single gradient
        stands for all steps."""
        return self.local == "unrolled" and reading.stepwise and reading.senders == 1

    def _mismatch(self, parts: Parts, reading: Reading) -> Mismatch:
        distance = Distance(
            kind=parts.distance, layers=self.layers, exclude=self.exclude, unknown_scale=self.unknown_scale
        )
        return Mismatch(reading=reading, distance=by_likelihood(distance, reading), unrolled=self.unrolls(reading))


def reconstruction(
    problem: MatchingProblem, solution: Solution, solver: Solver[Any], cost: int, notes: tuple[str, ...]
) -> Reconstruction:
    """Turn a solver's result into the attack's reconstruction.

    - `problem`: the matching problem that was solved; `solution`: the solver's result.
    - `solver`: converts evaluations to the outer steps of the attack's paper.
    - `cost`: evaluations of the objective counted for each evaluation of the solver.
    - `notes`: the attack's departures from its paper, for the record."""
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
        notes=notes if problem.reading.statistics is None else (*notes, _STATISTICS),
    )


def _departures(parts: Parts, problem: MatchingProblem, evaluations: int) -> Iterator[str]:
    yield "keeps the point of the attack's least loss; the published loop keeps the last"
    if problem.space is not None:
        yield "the solver sees normalised losses and preconditioned inputs"
    yield from parts.departures
    if evaluations < parts.limits.evaluations:
        yield f"at most {evaluations} evaluations; the authors allow {parts.limits.evaluations}"
