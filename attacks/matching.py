"""Gradient matching: distance + prior + solver + start + labels, many readings side by side.

An attack of this kind says only which parts it takes and with which numbers.
"""

import copy
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from bench.attacks.base import Attack, Objective
from bench.attacks.parts.curvature import PUBLIC, stretch
from bench.attacks.parts.distance import Distance, Kind, Layers
from bench.attacks.parts.labels import infer_labels, last_layer
from bench.attacks.parts.local import unrolled_update
from bench.attacks.parts.prior import absolute, edge_scale, edges, outside, squared, total_variation
from bench.attacks.parts.start import Start, start
from bench.attacks.solvers.base import Solver
from bench.attacks.solvers.loop import Plan, Solution, continued, minimise
from bench.gradients import group_gradients, one_hot
from bench.parameters import parameter
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
    scaled: bool = False  # whether solvers see faint readings and input values in units of usual size


@dataclass(frozen=True, kw_only=True)
class MatchingAttack(Attack):
    """An attack by gradient matching; these options are ours, and off as published."""

    layers: Layers = parameter("equal", "weights of the tensors in the distance", source="ours")
    exclude: tuple[str, ...] = parameter(
        (), "tensors left out: those whose names begin so", source="Risk-balanced"
    )
    unknown_scale: bool = parameter(False, "the reading may be shortened by an unknown factor", source="ours")
    refine_float64: bool = parameter(
        False, "rows that single precision stops are taken on in double", source="ours"
    )

    local: Literal["one-gradient", "unrolled"] = parameter(
        "one-gradient", "how L > 1 local steps are read: their mean as one gradient, or each step simulated",
        source="Geiping et al. 2020, §6",
    )  # fmt: skip

    @abstractmethod
    def parts(self, reading: Reading, budget: Budget) -> Parts:
        """The parts, for this reading and within this budget."""

    def refuses(self, reading: Reading) -> str | None:
        if reading.linked != "vector":
            return "it matches whole vectors, and this reading's coordinates are not linked"
        inferred = reading.labels is None and self.parts(reading, Budget(evaluations=1)).labels == "inferred"
        if inferred and last_layer(reading.model, reading.classes) is None:
            return "the model has no last linear layer to read labels off; grant labels, or take dlg"
        if self._unrolls(reading) and reading.description is not None and reading.description.inside_steps:
            return "it cannot yet unroll local steps with a described defense inside them; take one-gradient"
        return None

    def _unrolls(self, reading: Reading) -> bool:
        return self.local == "unrolled" and reading.steps > 1 and reading.senders == 1

    def objective(self, reading: Reading) -> Objective:
        """The matching distance at given inputs and label probabilities, no prior."""
        measure = self.distance(self.parts(reading, Budget(evaluations=1)), reading)
        observed = observations(reading)

        def at(inputs: Tensor, targets: Tensor) -> Tensor:
            return _mismatch(
                measure, reading, observed, inputs, targets, differentiable=False,
                unrolled=self._unrolls(reading),
            )  # fmt: skip

        return at

    def distance(self, parts: Parts, reading: Reading) -> Distance:
        """The distance of these parts; to one who knows of Laplace noise alone, L1 is its log-likelihood."""
        noise = None if reading.description is None else reading.description.noise
        laplace = (
            noise is not None and noise.variance > 0 and noise.law == "laplace" and parts.distance == "l2"
        )
        return Distance(
            kind="l1" if laplace and len(reading.rounds) == 1 else parts.distance,
            layers=self.layers, exclude=self.exclude, unknown_scale=self.unknown_scale,
        )  # fmt: skip

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        parts = self.parts(reading, budget)
        each = (
            reading.steps if self._unrolls(reading) else 1
        )  # an evaluation unrolled over L steps counts as L
        allowed = min(parts.plan.evaluations, budget.evaluations)
        plan = replace(parts.plan, evaluations=max(1, allowed // each), leave_stalled=self.refine_float64)
        observed = observations(reading)
        joint = parts.labels == "joint" and reading.labels is None
        labels = None if joint else infer_labels(reading, mean_of(observed))
        problem = _Matching(
            reading=reading, parts=parts, measure=self.distance(parts, reading), observed=observed,
            labels=labels, key=key, known=Known.of(reading, len(observed)), unrolled=each > 1,
            shuffled=each > 1 and labels is not None,
        )  # fmt: skip
        if problem.ours:
            problem = replace(problem, stretch=stretch(reading, problem.like, key).repeat(reading.examples))
        solution = minimise(problem, parts.solver, plan, torch.arange(len(reading)), width=budget.chunk)
        if self.refine_float64:
            solution = _finished(problem, parts.solver, plan, solution, budget.chunk)
        return _reconstruction(problem, solution, tuple(_departures(problem, allowed)), each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a described noise tells: the most probable candidate is sought, not the one that fits best.

    With variance v of the noise on each coordinate of the mean observation, -2v log p is the squared
    distance (Laplace's law: √(v/2) times it, the absolute one) plus `weight` times the prior's -log p:
    neighbours differ as in public pictures, and values lie in the data's range.
    """

    variance: float
    weight: float
    scale: float

    @classmethod
    def of(cls, reading: Reading, observations: int) -> "Known | None":
        """None where no noise is described, or no prior of neighbours is at hand."""
        if reading.description is None or reading.description.noise.variance == 0:
            return None
        noise = reading.description.noise
        averaged = len(reading.rounds) / observations
        variance = noise.variance / averaged
        single = noise.law == "laplace" and len(reading.rounds) == 1
        weight = (variance / 2) ** 0.5 if single else 2 * variance
        pictures = reading.kind == "image" and len(reading.public_inputs) > 1
        return cls(
            variance=variance, weight=weight if pictures else 0.0,
            scale=edge_scale(reading.public_inputs[:256]) if pictures else 1.0,
        )  # fmt: skip

    def prior(self, x: Tensor, value_range: tuple[float, float]) -> Tensor | float:
        if self.weight == 0:
            return 0.0
        return self.weight * (edges(x, self.scale) + outside(x, *value_range) / (2 * _BEYOND**2))


_BEYOND = 0.05  # how far outside the data's range a value is taken to be one deviation off


def observations(reading: Reading) -> list[dict[str, Tensor]]:
    """Each observation as one gradient, name → (reading, *shape), in gradient units.

    An update over L steps, w_0 - w_L = η Σ g, is read as the mean gradient: exact at L = 1.
    Observations under the same weights are averaged, the mean being all they tell of the secret, unless
    the defense says that more than added noise is random.
    """
    scale = 1 / (reading.unit * reading.steps)
    values = {name: value * scale for name, value in reading.values.items()}
    count = len(reading.rounds)
    if _frozen(reading) and (reading.description is None or reading.description.additive):
        return [{name: value.mean(1) for name, value in values.items()}]
    return [{name: value[:, n] for name, value in values.items()} for n in range(count)]


def mean_of(observed: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several observations, name → (reading, *shape)."""
    return {name: torch.stack([one[name] for one in observed]).mean(0) for name in observed[0]}


def _frozen(reading: Reading) -> bool:
    """Whether all observations were made under the same weights."""
    return all(bool((w == w[:1]).all()) for w in reading.weights.values())


def _mismatch(
    measure: Distance, reading: Reading, observed: list[dict[str, Tensor]], inputs: Tensor, targets: Tensor,
    *, differentiable: bool, unrolled: bool = False,
) -> Tensor:  # fmt: skip
    total = torch.zeros(len(inputs), dtype=inputs.dtype, device=inputs.device)
    frozen = len(observed) > 1 and _frozen(reading)
    gradients = None
    for number, target in enumerate(observed):
        if gradients is None or not frozen:
            weights = {name: value[number] for name, value in reading.weights.items()}
            gradients = _gradients(reading, weights, inputs, targets, differentiable, unrolled)
        sent = gradients
        if reading.description is not None:
            sent = reading.description.simulate(gradients, target)
        total = total + measure(sent, target)
    return total / len(observed)


def _gradients(
    reading: Reading, weights: Tensors, inputs: Tensor, targets: Tensor, differentiable: bool, unrolled: bool
) -> dict[str, Tensor]:
    """The dummies' gradients: their mean, name → (reading, *shape); for the attacker who knows the defense
    each one's own, (reading, example, *shape), to be pushed through the description."""
    if unrolled:
        update = unrolled_update(
            reading.model, weights, inputs, targets, steps=reading.steps, rate=reading.rate
        )
        return update if reading.description is None else {name: v[:, None] for name, v in update.items()}
    if reading.description is None:
        return group_gradients(reading.model, weights, inputs, targets, differentiable=differentiable)
    count, examples = inputs.shape[:2]
    flat = group_gradients(
        reading.model, weights, inputs.flatten(0, 1)[:, None], targets.flatten(0, 1)[:, None],
        differentiable=differentiable,
    )  # fmt: skip
    return {name: value.unflatten(0, (count, examples)) for name, value in flat.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Matching:
    """The objective of `loop.minimise`: variables are the dummies over `stretch` (where given), and the label
    logits if joint."""

    reading: Reading
    parts: Parts
    measure: Distance
    observed: list[dict[str, Tensor]]
    labels: Tensor | None
    key: Key
    known: Known | None
    unrolled: bool = False
    shuffled: bool = False  # whether restarts try the labels in other orders
    stretch: Tensor | None = None  # (input value,)
    begin: Tensor | None = None  # (reading, variable): where to go on instead of the start

    @property
    def inputs(self) -> int:
        """Variables that are input values."""
        return self.reading.examples * self.reading.public_mean.numel()

    @property
    def like(self) -> Tensor:
        return next(iter(self.reading.values.values()))

    @property
    def ours(self) -> bool:
        """Whether the solver gets our units: as its attack asks, and for one who knows the defense."""
        asked = self.parts.scaled or self.reading.description is not None
        return asked and self.measure.kind != "cosine"

    def start(self, row: int, restart: int) -> Tensor:
        reading = self.reading
        if self.begin is not None:
            return self.begin[row]
        x = start(self.parts.start, reading, row, restart, self.key).flatten()
        if self.stretch is not None:
            x = x / self.stretch.to(x)
        if self.labels is None:
            draw = self.key.generator("label", reading.indices[row], restart)
            free = torch.from_numpy(draw.standard_normal((reading.examples, reading.classes)))
            x = torch.cat([x, free.flatten().to(x.dtype)])
        return x.to(self.like)

    def scale(self, rows: Tensor) -> Tensor:
        totals = [self.measure.nothing(narrow(target, rows)) for target in self.observed]
        return torch.stack(totals).mean(0)

    def floor(self, rows: Tensor) -> Tensor:
        """What described noise leaves of the distance at the truth: its variance (Laplace: its mean
        magnitude) on each coordinate that is not exactly zero."""
        if self.known is None or self.measure.kind == "cosine":
            return torch.zeros_like(self.scale(rows))
        each = (self.known.variance / 2) ** 0.5 if self.measure.kind == "l1" else self.known.variance
        counts = [
            torch.stack([(v != 0).flatten(1).sum(1) for v in narrow(o, rows).values()]).sum(0)
            for o in self.observed
        ]
        return each * torch.stack(counts).to(self.like).mean(0)

    def units(self, rows: Tensor) -> Tensor:
        """1 as published; else the energy of undefended public gradients over the reading's own, where that is
        fainter: one clipped short, or of a picture that the model is sure of, must not meet the solver's
        absolute tolerances at once."""
        scale = self.scale(rows)
        reading = self.reading
        if not self.ours or not len(reading.public_labels) or bool((reading.public_labels < 0).any()):
            return torch.ones_like(scale)
        count = min(PUBLIC, len(reading.public_inputs))
        inputs = reading.public_inputs[:count].to(self.like)[:, None]
        targets = one_hot(reading.public_labels[:count], reading.classes, self.like.dtype)[:, None]
        weights = {name: value[0] for name, value in reading.weights.items()}
        public = group_gradients(reading.model, weights, inputs, targets.to(self.like.device))
        usual = self.measure.nothing(public).mean() / reading.examples
        return (usual / scale.clamp_min(torch.finfo(scale.dtype).tiny)).clamp_min(1)

    def narrowed(self, rows: Tensor, restarts: Tensor) -> "_Rows":
        labels = self.ordered(rows, restarts)
        return _Rows(
            problem=self,
            observed=[narrow(target, rows) for target in self.observed],
            targets=None
            if labels is None
            else one_hot(labels, self.reading.classes, self.like.dtype).to(self.like.device),
        )

    def ordered(self, rows: Tensor, restarts: Tensor) -> Tensor | None:
        """The labels (row, picture) as a run takes them.  In which order a client's local steps saw them is not
        in its update: the first run takes them in ascending order, each restart in a random one."""
        if self.labels is None or not self.shuffled:
            return None if self.labels is None else self.labels[rows.cpu()]
        found = []
        for row, restart in zip(rows.tolist(), restarts.tolist(), strict=True):
            draw = self.key.generator("label-order", self.reading.indices[row], restart)
            count = self.reading.examples
            found.append(self.labels[row][draw.permutation(count) if restart else torch.arange(count)])
        return torch.stack(found)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Variables (row, variable) as inputs (row, picture, *shape) and label logits, if joint."""
        reading = self.reading
        inputs = x[:, : self.inputs]
        if self.stretch is not None:
            inputs = inputs * self.stretch
        inputs = inputs.reshape(len(x), reading.examples, *reading.shape)
        if self.labels is not None:
            return inputs, None
        return inputs, x[:, self.inputs :].reshape(len(x), reading.examples, reading.classes)


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
            problem.measure,
            problem.reading,
            self.observed,
            inputs,
            targets,
            differentiable=True,
            unrolled=problem.unrolled,
        ) + problem.parts.prior(inputs)
        if problem.known is not None:
            loss = loss + problem.known.prior(inputs, problem.reading.value_range)
        (gradient,) = torch.autograd.grad(loss.sum(), x)
        return loss.detach(), gradient


def narrow(tensors: Tensors, rows: Tensor) -> dict[str, Tensor]:
    """Some rows of each tensor."""
    return {name: value[rows.to(value.device)] for name, value in tensors.items()}


def _finished(
    problem: _Matching, solver: Solver[Any], plan: Plan, solution: Solution, width: int
) -> Solution:
    """Rows that single precision stopped before their budget, taken on in double precision."""
    seen = problem.units(torch.arange(len(solution.loss))) * solution.loss
    unfinished = (seen > (plan.stop_loss or 0.0)) & torch.isfinite(seen)
    rows = torch.nonzero((solution.evaluations < plan.evaluations) & unfinished)[:, 0]
    if not len(rows) or problem.like.dtype == torch.float64:
        return solution
    reading = problem.reading
    double = replace(
        problem,
        reading=replace(
            reading, model=copy.deepcopy(reading.model).double(),
            values={name: value.double() for name, value in reading.values.items()},
            weights={name: value.double() for name, value in reading.weights.items()},
        ),
        observed=[{name: value.double() for name, value in o.items()} for o in problem.observed],
        labels=problem.ordered(torch.arange(len(solution.runs)), solution.runs), shuffled=False,
        stretch=None if problem.stretch is None else problem.stretch.double(),
        begin=solution.x.double(),
    )  # fmt: skip
    more = minimise(
        double,
        solver,
        replace(plan, restarts=0, leave_stalled=False),
        rows,
        width=width,
        spent=solution.evaluations[rows],
    )
    return continued(solution, more, rows)


def _reconstruction(
    problem: _Matching, solution: Solution, notes: tuple[str, ...], each: int
) -> Reconstruction:
    """The claim; `each` evaluations count for one of the solver's."""
    inputs, free = problem.split(solution.x)
    labels = problem.ordered(torch.arange(len(inputs)), solution.runs) if free is None else free.argmax(-1)
    assert labels is not None
    bounds = problem.scale(torch.arange(len(inputs)))
    evaluations = each * solution.evaluations.cpu()
    shown = solution.trajectory.shape[1]
    trajectory = problem.split(solution.trajectory.flatten(0, 1))[0].unflatten(0, (-1, shown))
    return Reconstruction(
        inputs=inputs.cpu(), labels=labels.cpu(), loss=solution.loss.cpu(), evaluations=evaluations,
        outer=problem.parts.solver.outer(evaluations), restarts=solution.restarts.cpu(),
        status=tuple(
            "nan" if not torch.isfinite(value) else "diverged" if value >= bound else "ok"
            for value, bound in zip(solution.loss, bounds, strict=True)
        ),
        history=tuple(
            (each * mark, tuple(float(v) for v in row))
            for mark, row in zip(solution.marks, solution.losses, strict=True)
        ),
        trajectory=trajectory.cpu(), notes=notes,
    )  # fmt: skip


def _departures(problem: "_Matching", allowed: int) -> Iterator[str]:
    """Where this is not what the authors ran, in words for the record."""
    parts = problem.parts
    yield "keeps the point of the attack's least own loss; the published loop keeps the last"
    if problem.ours:
        yield "the solver sees losses and input values in units of their usual size"
    yield from parts.departures
    if allowed < parts.plan.evaluations:
        yield f"at most {allowed} evaluations; the authors allow {parts.plan.evaluations}"
