"""Search for the most probable examples behind a reading (`map`), or behind training on mixtures (`demix`)."""

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from bench.attacks.base import Objective
from bench.attacks.labels.hypotheses import label_hypotheses
from bench.attacks.labels.infer import described_classes, label_notes, unreadable
from bench.attacks.objective.distance import Distance
from bench.attacks.objective.mismatch import Mismatch, by_likelihood, mean_observation, observations
from bench.attacks.objective.rescale import rescaled
from bench.attacks.search.activations import Start, start_by_layers
from bench.attacks.search.anneal import annealed
from bench.attacks.search.curvature import LARGEST, equal_curvature
from bench.attacks.search.matching import reconstruction
from bench.attacks.search.mixtures import Mixed
from bench.attacks.search.prior import NoiseModel, Prior
from bench.attacks.search.problem import MatchingProblem
from bench.attacks.search.soften import has_relu, softened
from bench.attacks.search.space import Dense, Space, Spectrum, public_space
from bench.attacks.search.staged import Stage, staged
from bench.attacks.solvers.lbfgs import Lbfgs
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction

# Sharpness of softened ReLUs and weight of -log p, by stage; None: the ReLU itself.
_SHARPNESS = (1.0, 2.0, 5.0, 15.0, 50.0, 150.0, None)
_WEIGHTS = (1e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 1e-6)
_SOFT_STAGE = 150  # evaluations per softened stage above which another start pays
_BY_LAYERS = 0.2  # of the evaluations: search for a start from known values inside the net
_HISTORY = 100
_LEAST_PUBLIC = 3  # examples
_LEAST_CURVED = 200  # evaluations per start from which the curvature matrix pays


def unfit(reading: Reading) -> str | None:
    """Return the reason, in a few words, why the search for the most probable examples cannot run on the batch
    `reading`, or None if the search can run."""
    if reading.linked != "vector":
        return "it matches whole vectors, and this reading's coordinates are not linked"
    if reason := unreadable(reading):
        return reason
    if len(reading.public_inputs) < _LEAST_PUBLIC:
        return f"it learns the distribution of inputs from public examples; give at least {_LEAST_PUBLIC}"
    return None


def objective_of(reading: Reading) -> Objective:
    """Return the distance that the attack `map` minimises for the batch `reading`, without the prior term; with this
    function the bench checks whether the true examples are nearer to the reading than public examples. The function
    takes candidates' inputs (reading, example, *shape) and label probabilities (reading, example, class), and returns
    the distance between simulated and observed gradients (reading,)."""
    reading = rescaled(reading)
    return partial(mismatch_of(reading), observations(reading), differentiable=False)


def most_probable(
    reading: Reading,
    budget: Budget,
    key: Key,
    *,
    starts: int,
    tolerance: float,
    distinct: int | None = None,
    mixed: bool = False,
    space: Space | None = None,
    known: Start | None = None,
) -> Reconstruction:
    """Search for the most probable examples behind each reading of a batch, from several starts.

    - `reading`: the batch, scaled by `rescaled` to norms within single precision.
    - `budget`: limits of the attack; `key`: source of random numbers.
    - `starts`: number of starts per reading.
    - `tolerance`: a reading is finished if its loss is below this share of the loss of a zero gradient.
    - `distinct`: number of distinct examples behind a reading; None if all are distinct.
    - `mixed`: True searches the original examples behind mixtures (mixup).
    - `space`: search space with the prior of inputs; None fits a space to the public examples.
    - `known`: candidates of an earlier search, from which the search goes on first; None without an earlier search."""
    observed, mismatch = observations(reading), mismatch_of(reading)
    space = public_space(reading) if space is None else space
    seen = mean_observation(observed)
    described = described_classes(reading, seen)
    hypotheses = label_hypotheses(reading, seen, starts, key, described)
    cost = reading.steps if mismatch.unrolled else 1
    problem = MatchingProblem(
        mismatch=mismatch,
        observed=observed,
        start_kind="grey",
        prior=Prior(),
        key=key,
        labels=hypotheses[:, 0],
        noise=NoiseModel.of(reading, len(observed)),
        distinct=distinct,
        mixed=mixed,
        space=Mixed(space, reading.examples) if mixed else space,
    )
    evaluations, noise = max(1, budget.evaluations // cost), problem.noise
    stages = _annealed(reading, mismatch, space, evaluations, key)
    starts = 1 if stages else _starts_worth(reading, evaluations, starts)
    ways = (stages,) if stages else _ways(reading, space, noise.variance, evaluations // starts, key, bound=noise.bound)
    if mixed:
        ways = tuple(tuple(replace(stage, space=Mixed(stage.space, reading.examples)) for stage in way) for way in ways)
    solver = Lbfgs(history=min(_HISTORY, evaluations), line_search="backtracking")
    if known is None and not mixed and isinstance(space, Dense | Spectrum):
        known = start_by_layers(reading, observed, space, round(_BY_LAYERS * evaluations))
    solution = staged(
        problem,
        hypotheses,
        solver,
        ways,
        starts=starts,
        stop=tolerance,
        budget=replace(budget, evaluations=evaluations),
        known=known,
    )
    problem = replace(problem, labels=hypotheses[torch.arange(len(reading)), solution.runs])
    return reconstruction(problem, solution, solver, cost, label_notes(reading, described))


def mismatch_of(reading: Reading) -> Mismatch:
    """Return the matching distance of the attack `map` for the batch `reading`: a function that compares the simulated
    readings of candidates with the actual reading. Its form fits the noise in the defense's description."""
    return Mismatch(
        reading=reading,
        distance=by_likelihood(Distance(kind="l2"), reading),
        unrolled=reading.stepwise and reading.senders == 1,
    )


def curved_from(reading: Reading, starts: int) -> int:
    """Return the least number of evaluations from which a search on the batch `reading` with `starts` starts uses a
    better conditioned search space (equal curvature in all directions, `search/curvature.py`). With fewer evaluations,
    the time to prepare this space would not pay. A caller uses the result to estimate a search's time."""
    unrolled = reading.stepwise and reading.senders == 1
    return _LEAST_CURVED * starts * (reading.steps if unrolled else 1)


def curved_seconds(reading: Reading, key: Key) -> tuple[float, float]:
    """Measure how much longer a search takes in the better conditioned space that long searches use (equal curvature,
    `search/curvature.py`), in order to predict an attack's time. Return the seconds to prepare the space, and the
    additional seconds per evaluation; both are 0 for a search without such a space.

    - `reading`: the attacked batch of readings.
    - `key`: source of random numbers."""
    reading = rescaled(reading)
    described = reading.description
    noisy = NoiseModel.of(reading, len(observations(reading))).variance > 0
    if (
        _has_relu(reading)
        or not _worth_curving(reading, _LEAST_CURVED)
        or (noisy and not (described and described.hard))
    ):
        return 0.0, 0.0
    space, began = public_space(reading), time.monotonic()
    curved = equal_curvature(space, reading, key)
    before, times = time.monotonic() - began, list[float]()
    for _ in range(3):
        variables = torch.zeros(len(reading), reading.examples, reading.public_mean.numel(), requires_grad=True)
        began = time.monotonic()
        inputs, energy = curved.with_energy(variables)
        torch.autograd.grad(inputs.sum() + energy.sum(), variables)
        times.append(time.monotonic() - began)
    return before, min(times)


def _starts_worth(reading: Reading, evaluations: int, starts: int) -> int:
    if not _has_relu(reading):
        return starts
    return max(1, min(starts, evaluations // (_SOFT_STAGE * len(_SHARPNESS))))


def _ways(
    reading: Reading, space: Space, variance: float, evaluations: int, key: Key, *, bound: bool
) -> tuple[tuple[Stage, ...], ...]:
    model = reading.model
    if _has_relu(reading):
        return (tuple(_softened_stages(model, space, by_angle=variance == 0)),)
    if variance > 0:  # for a bound, the first stage's residual sets the second stage's weight
        first = (Stage(model=model, space=space, until=0.3),) if bound else ()
        return ((*first, Stage(model=model, space=space)),)
    later = _curved(space, reading, evaluations, key)
    until = 0.5 if later is space else 0.3
    last = Stage(model=model, space=later)
    by_distance = Stage(model=model, space=space, weight=2e-6, until=until)
    by_angle = (
        Stage(model=model, space=space, weight=1e-4, until=until / 2, cosine=True),
        Stage(model=model, space=space, weight=1e-6, until=until, cosine=True),
    )
    return ((by_distance, last), (*by_angle, last)) if reading.examples == 1 else ((by_distance, last),)


def _annealed(
    reading: Reading, mismatch: Mismatch, space: Space, evaluations: int, key: Key
) -> tuple[Stage, ...] | None:
    if _has_relu(reading) or reading.description is None or not reading.description.hard:
        return None
    return annealed(reading, mismatch, space, _curved(space, reading, evaluations, key), evaluations, key)


def _curved(space: Space, reading: Reading, evaluations: int, key: Key) -> Space:
    if isinstance(space, Dense | Spectrum) and _worth_curving(reading, evaluations):
        return equal_curvature(space, reading, key)
    return space


def _has_relu(reading: Reading) -> bool:
    like = next(reading.model.parameters())
    return has_relu(reading.model, reading.public_mean[None].to(like))


def _worth_curving(reading: Reading, evaluations: int) -> bool:
    return evaluations >= _LEAST_CURVED and reading.public_mean.numel() <= LARGEST


def _softened_stages(model: nn.Module, space: Space, *, by_angle: bool) -> Iterator[Stage]:
    for n, (sharpness, weight) in enumerate(zip(_SHARPNESS, _WEIGHTS, strict=True), 1):
        stage = Stage(model=model, space=space, weight=weight, until=n / len(_SHARPNESS))
        if sharpness is not None:
            stage = replace(stage, model=softened(model, sharpness), cosine=by_angle)
        yield stage
