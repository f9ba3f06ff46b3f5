"""Gradient matching: distance + prior + solver + start + labels, and the loop over chunks.

An attack of this kind says only which parts it takes and with which numbers.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from bench.attacks.base import Attack, Objective
from bench.attacks.parts.distance import Kind, distance, nothing
from bench.attacks.parts.labels import infer_labels, last_layer
from bench.attacks.parts.prior import absolute, squared, total_variation
from bench.attacks.parts.start import Start, start
from bench.attacks.solvers.base import Solver
from bench.attacks.solvers.loop import Plan, Solution, minimise
from bench.gradients import group_gradients, one_hot
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Weights of the priors added to the distance; total variation is for pictures alone."""

    total_variation: float = 0.0
    squared: float = 0.0
    absolute: float = 0.0

    def __call__(self, x: Tensor) -> Tensor | float:
        return (
            (self.total_variation * total_variation(x) if self.total_variation and x.dim() == 5 else 0.0)
            + (self.squared * squared(x) if self.squared else 0.0)
            + (self.absolute * absolute(x) if self.absolute else 0.0)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What one attack is made of; `labels = "joint"` optimises softmax(free vector) with the dummy
    (Zhu et al. 2019), `"inferred"` reads them off the gradient first.  The plan has the authors' count of
    evaluations, which the budget caps; `departures` says in words what is not the authors'."""

    distance: Kind
    solver: Solver[Any]
    start: Start
    labels: Literal["joint", "inferred"]
    plan: Plan
    departures: tuple[str, ...] = ()
    prior: Prior = Prior()


class MatchingAttack(Attack):
    """An attack by gradient matching."""

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
        """The matching distance at given inputs and label probabilities, no prior."""
        kind = self.parts(reading, Budget(evaluations=1)).distance
        observed = observations(reading)

        def at(inputs: Tensor, targets: Tensor) -> Tensor:
            return _mismatch(kind, reading, observed, inputs, targets, differentiable=False)

        return at

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        parts = self.parts(reading, budget)
        plan = replace(parts.plan, evaluations=min(parts.plan.evaluations, budget.evaluations))
        observed = observations(reading)
        joint = parts.labels == "joint" and reading.labels is None
        mean = {name: torch.stack([o[name] for o in observed]).mean(0) for name in observed[0]}
        labels = None if joint else infer_labels(reading, mean)
        problem = _Matching(reading=reading, parts=parts, observed=observed, labels=labels, key=key)
        solutions = [
            minimise(problem, parts.solver, plan, rows)
            for rows in torch.arange(len(reading)).split(budget.chunk)
        ]
        return _reconstruction(problem, solutions, tuple(_departures(parts, plan)))


def observations(reading: Reading) -> list[dict[str, Tensor]]:
    """Each observation as one gradient, name → (reading, *shape), in gradient units.

    An update over L steps, w_0 - w_L = η Σ g, is read as the mean gradient: exact at L = 1.
    Observations under the same weights are averaged: the mean is all they tell of the secret.
    """
    scale = 1 / (reading.unit * reading.steps)
    values = {name: value * scale for name, value in reading.values.items()}
    count = len(reading.rounds)
    same = all((w == w[:1]).all() for w in reading.weights.values())
    if same:
        return [{name: value.mean(1) for name, value in values.items()}]
    return [{name: value[:, n] for name, value in values.items()} for n in range(count)]


def _mismatch(
    kind: Kind, reading: Reading, observed: list[dict[str, Tensor]], inputs: Tensor, targets: Tensor,
    *, differentiable: bool,
) -> Tensor:  # fmt: skip
    total = torch.zeros(len(inputs), dtype=inputs.dtype, device=inputs.device)
    for number, target in enumerate(observed):
        weights = {name: value[number] for name, value in reading.weights.items()}
        sent = _sent(reading, weights, inputs, targets, target, differentiable)
        total = total + distance(kind, sent, target)
    return total / len(observed)


def _sent(
    reading: Reading,
    weights: Tensors,
    inputs: Tensor,
    targets: Tensor,
    observed: Tensors,
    differentiable: bool,
) -> dict[str, Tensor]:
    """What a client with these dummies would send, name → (reading, *shape), in gradient units.

    The plain attacker takes the mean gradient; the one who knows the defense pushes each dummy's
    gradient through the defense's description.
    """
    if reading.description is None:
        return group_gradients(reading.model, weights, inputs, targets, differentiable=differentiable)
    count, examples = inputs.shape[:2]
    flat = group_gradients(
        reading.model, weights, inputs.flatten(0, 1)[:, None], targets.flatten(0, 1)[:, None],
        differentiable=differentiable,
    )  # fmt: skip
    per_example = {name: value.unflatten(0, (count, examples)) for name, value in flat.items()}
    return reading.description.candidate(per_example, observed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Matching:
    """The objective of `loop.minimise`: variables are the dummies, and the label logits if joint."""

    reading: Reading
    parts: Parts
    observed: list[dict[str, Tensor]]
    labels: Tensor | None
    key: Key

    @property
    def inputs(self) -> int:
        """Variables that are input values."""
        return self.reading.pictures * self.reading.public_mean.numel()

    @property
    def like(self) -> Tensor:
        return next(iter(self.reading.values.values()))

    def start(self, row: int, restart: int) -> Tensor:
        reading = self.reading
        x = start(self.parts.start, reading, row, restart, self.key).flatten()
        if self.labels is None:
            draw = self.key.generator("label", reading.indices[row], restart)
            free = torch.from_numpy(draw.standard_normal((reading.pictures, reading.classes)))
            x = torch.cat([x, free.flatten().to(x.dtype)])
        return x.to(self.like)

    def scale(self, rows: Tensor) -> Tensor:
        totals = [nothing(self.parts.distance, narrow(target, rows)) for target in self.observed]
        return torch.stack(totals).mean(0)

    def narrowed(self, rows: Tensor) -> "_Rows":
        return _Rows(
            problem=self,
            observed=[narrow(target, rows) for target in self.observed],
            targets=None
            if self.labels is None
            else one_hot(self.labels[rows], self.reading.classes, self.like.dtype).to(self.like.device),
        )

    def split(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Variables (row, variable) as inputs (row, picture, *shape) and label logits, if joint."""
        reading = self.reading
        inputs = x[:, : self.inputs].reshape(len(x), reading.pictures, *reading.shape)
        if self.labels is not None:
            return inputs, None
        return inputs, x[:, self.inputs :].reshape(len(x), reading.pictures, reading.classes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    problem: _Matching
    observed: list[dict[str, Tensor]]
    targets: Tensor | None

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        problem = self.problem
        x = x.detach().requires_grad_()
        inputs, free = problem.split(x)
        targets = self.targets if free is None else free.softmax(-1)
        assert targets is not None
        loss = _mismatch(
            problem.parts.distance, problem.reading, self.observed, inputs, targets, differentiable=True
        ) + problem.parts.prior(inputs)
        (gradient,) = torch.autograd.grad(loss.sum(), x)
        return loss.detach(), gradient


def narrow(tensors: Tensors, rows: Tensor) -> dict[str, Tensor]:
    """Some rows of each tensor."""
    return {name: value[rows.to(value.device)] for name, value in tensors.items()}


def _reconstruction(problem: _Matching, solutions: list[Solution], notes: tuple[str, ...]) -> Reconstruction:
    x = torch.cat([solution.x for solution in solutions])
    loss = torch.cat([solution.loss for solution in solutions])
    evaluations = torch.cat([solution.evaluations for solution in solutions]).cpu()
    inputs, free = problem.split(x)
    labels = problem.labels if free is None else free.argmax(-1)
    assert labels is not None
    scale = problem.scale(torch.arange(len(x)))
    marks = sorted({mark for solution in solutions for mark, _ in solution.history})
    history = tuple(
        (mark, tuple(float(v) for s in solutions for v in _at(s.history, mark))) for mark in marks
    )
    return Reconstruction(
        inputs=inputs.cpu(), labels=labels.cpu(), loss=loss.cpu(), evaluations=evaluations,
        outer=problem.parts.solver.outer(evaluations),
        restarts=torch.cat([solution.restarts for solution in solutions]).cpu(),
        status=tuple(
            "nan" if not torch.isfinite(value) else "diverged" if value >= bound else "ok"
            for value, bound in zip(loss, scale, strict=True)
        ),
        history=history, notes=notes,
    )  # fmt: skip


def _departures(parts: Parts, plan: Plan) -> Iterator[str]:
    """Where this is not what the authors ran, in words for the record."""
    yield "keeps the point of the attack's least own loss; the published loop keeps the last"
    yield from parts.departures
    if plan.evaluations < parts.plan.evaluations:
        yield f"at most {plan.evaluations} evaluations; the authors allow {parts.plan.evaluations}"


def _at(history: tuple[tuple[int, Tensor], ...], mark: int) -> Tensor:
    """The losses at the last mark not after `mark`."""
    return [losses for when, losses in history if when <= mark or when == history[0][0]][-1]
