"""Minimise in stages (successive minimisations), from several starts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bench.attacks.search.activations import Start
from bench.attacks.search.prior import prior_weight
from bench.attacks.search.problem import MatchingProblem
from bench.attacks.search.space import Space
from bench.attacks.solvers.base import RowLimits, Solution, Solver
from bench.attacks.solvers.loop import minimise
from bench.rows import flattened
from bench.trip import Budget, Description, Reading

_TOLERANCE = 1e-5  # of the zero-gradient loss: seen as 1 by the solver, whose tolerances are absolute
_EXPLAINED = 1e-3  # of the zero-gradient loss: below, a reading needs no further start
# The same for a start from known values inside the net: other starts reach less loss there, and worse examples.
_EXPLAINED_BY_LAYERS = 1e-2
_FAINT = 2e-6  # of the zero-gradient loss: weight of -log p before the first residual
# A stage on an explained reading ends if its loss falls by less than the share (second) over the evaluations per
# example (first).  The rest of the budget continues with a smaller weight of -log p, which gains more.
_FLAT_STAGE, _FLAT_END = (20, 0.1), (40, 0.01)
# Such a stage ends, too, once images are exact to the error (a share of their range; rounding to 8 bits makes 1.1e-3),
# as estimated every so many evaluations per example.
_PRECISION, _PRECISE_AFTER = 2.5e-4, 10
_LEAST = 4  # evaluations a stage needs
_BY_LAYERS = 0.3  # of the evaluations: end of the first minimisation, from known values inside the net
_SPREAD = (0.1, 0.5)  # deviation of u: first start with several examples, later starts


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Settings of one minimisation in a staged search, such as a softened model, its search space and the prior's
    weight. A staged search is a sequence of minimisations, each from the result of the previous minimisation."""

    model: nn.Module
    """Model of this stage, for example with softened ReLUs."""
    space: Space
    """Search space of this stage, from variables to inputs."""
    weight: float | None = None
    """Weight of the prior's -log p, as a share of a zero gradient's loss. None: twice the least loss until now, per
    coordinate. If the defense's description declares noise, the noise sets the weight instead. If the noise is only an
    upper bound, the last residual limits the weight."""
    until: float = 1.0
    """Share of a start's evaluations after which the stage ends."""
    cosine: bool = False
    """True minimises the angle to the reading (1 - cosine) instead of the distance."""
    width: float = 0.0
    """Relative width of the smooth transitions that replace the defense's hard decisions (`Description.softened`); 0
    keeps hard decisions."""
    variances: Mapping[str, Tensor] | None = None
    """Noise variance of each tensor, for the distance (`Distance.variances`). None: the described variance."""
    variance: float = 0.0
    """Mean of `variances` over coordinates; sets the weight of -log p in a stage with a `width`."""


@dataclass(slots=True, kw_only=True)
class _Search:
    """State of a staged search over all readings, with the arguments of `staged`. Counts, row numbers and start numbers
    are on the host."""

    problem: MatchingProblem
    hypotheses: Tensor
    solver: Solver[Any]
    stop: float
    budget: Budget
    zero_loss: Tensor
    noise_floor: Tensor  # (reading,), loss left by noise
    noise_weight: Tensor | None  # (reading,), weight of -log p under described noise
    coordinates: Tensor  # (reading,), number of nonzero observed coordinates
    spent: Tensor  # (reading,), evaluations
    restarts: Tensor
    runs: Tensor  # (reading,), start with the best point
    loss: Tensor  # (reading,), at the best point
    residual: Tensor  # (reading,), distance after the last stage
    point: Tensor  # (reading, example, value), best inputs so far
    marks: list[int]
    losses: list[Tensor]
    points: list[Tensor]


def staged(
    problem: MatchingProblem,
    hypotheses: Tensor,
    solver: Solver[Any],
    ways: Sequence[tuple[Stage, ...]],
    *,
    starts: int,
    stop: float,
    budget: Budget,
    known: Start | None = None,
) -> Solution:
    """Minimise `problem` in stages (successive minimisations), from several starts; return the point with the least
    loss for each reading (observed update), in `problem.space`.

    - `hypotheses` (reading, start, example): labels of each start, most plausible first.
    - `solver`: method of every stage.
    - `ways`: sequences of stages; the starts take these sequences in turn. The last stage is the same in all.
    - `starts`: number of starts.
    - `stop`: a reading is finished if its loss is below this share of a zero gradient's loss, or no longer falls.
    - `budget`: limit on evaluations, shared equally by the starts. Only unfinished readings begin another start.
      Remaining evaluations continue the last stage.
    - `known`: candidates from an earlier search. The last stage first minimises from these candidates; their
      evaluations count. None begins with the starts.

    The loss is the distance under the model itself, without softened ReLUs. If the defense's description declares
    noise, the prior's weighted -log p is added."""
    search, evaluations = _begin(problem, hypotheses, solver, stop, budget), budget.evaluations
    longest = max(map(len, ways))
    if evaluations < _LEAST * longest:
        ways, longest = [stages[-1:] for stages in ways], 1
    starts = max(1, min(starts, evaluations // (_LEAST * longest)))
    begin = 0 if known is None else _continue(search, known, ways[0][-1], round(_BY_LAYERS * evaluations))
    share = (evaluations - begin) // starts
    near = search.loss.cpu() <= _EXPLAINED_BY_LAYERS * search.zero_loss.cpu()  # of a start in `known`
    for start in range(starts):
        rows = _unexplained(search)
        rows = rows[~near[rows]]
        if known is not None and not known.settles and not start:
            rows = torch.arange(len(search.loss))
        if len(rows):
            search.restarts[rows] = start
            turn, way = divmod(start, len(ways))
            x, runs = _start(search, rows, start, first=not turn), torch.full_like(rows, start)
            search.residual[rows.to(search.residual.device)] = torch.inf
            for stage in ways[way]:
                x = _run(search, stage, rows, runs, x, begin + share * start + round(stage.until * share))
    above = (search.loss > stop * search.zero_loss).cpu()
    left = torch.nonzero((search.spent < evaluations) & above)[:, 0]
    if len(left):
        point = search.point[left.to(search.point.device)]
        _run(search, ways[0][-1], left, search.runs[left], point, evaluations, last=True)
    return Solution(
        x=_variables(search, search.point),
        loss=search.loss,
        evaluations=search.spent,
        restarts=search.restarts,
        runs=search.runs,
        marks=tuple(search.marks),
        losses=torch.stack(search.losses),
        trajectory=torch.stack([_variables(search, point) for point in search.points]),
    )


def _begin(problem: MatchingProblem, hypotheses: Tensor, solver: Solver[Any], stop: float, budget: Budget) -> _Search:
    rows = torch.arange(len(problem.reading))
    zero_loss, none = problem.zero_gradient_loss(rows), torch.zeros_like(rows)
    return _Search(
        problem=replace(problem, tolerance=_TOLERANCE, noise=replace(problem.noise, weight=0.0)),
        hypotheses=hypotheses,
        solver=solver,
        stop=stop,
        budget=budget,
        zero_loss=zero_loss,
        noise_floor=problem.noise_floor(rows),
        noise_weight=_noise_weight(problem, rows),
        coordinates=(flattened(problem.observed[0], 1) != 0).sum(1),
        spent=none,
        restarts=none.clone(),
        runs=none.clone(),
        loss=torch.full_like(zero_loss, torch.inf),
        residual=torch.full_like(zero_loss, torch.inf),
        point=zero_loss.new_zeros(len(rows), *_size(problem)),
        marks=[],
        losses=[],
        points=[],
    )


def _continue(search: _Search, known: Start, stage: Stage, limit: int) -> int:
    search.spent += known.evaluations
    rows = torch.nonzero(known.found)[:, 0]
    if not len(rows):
        return 0
    _run(search, stage, rows, torch.zeros_like(rows), known.inputs[rows.to(known.inputs.device)], limit)
    return limit


def _noise_weight(problem: MatchingProblem, rows: Tensor) -> Tensor | None:
    if problem.noise.variance == 0:
        return None
    return prior_weight(problem.variances(rows), absolute=problem.mismatch.distance.kind == "l1")


def _unexplained(search: _Search) -> Tensor:
    enough = torch.maximum(_EXPLAINED * search.zero_loss, 2 * search.noise_floor)
    return torch.nonzero(~(search.loss <= enough))[:, 0].cpu()


def _start(search: _Search, rows: Tensor, start: int, *, first: bool) -> Tensor:
    problem, (examples, values) = search.problem, _size(search.problem)
    assert problem.space is not None
    u = problem.like.new_zeros((len(rows), examples, values))
    # equal examples would stay equal, so several examples begin at distinct points
    if not first or examples > 1:
        for n, row in enumerate(rows.tolist()):
            for example in range(examples):
                random = problem.key.generator("start", problem.reading.indices[row], example, start)
                u[n, example] = torch.from_numpy(random.standard_normal(values)).to(u)
    return problem.space.inputs(_SPREAD[not first] * u)


def _run(
    search: _Search, stage: Stage, rows: Tensor, runs: Tensor, x: Tensor, limit: int, last: bool = False
) -> Tensor:
    """Run a stage from `x` (row, example, value) for the readings numbered `rows`; return the inputs reached. `limit`
    is the evaluation count at which the stage ends, `runs` (row,) holds start numbers, and `last` is True for the final
    stage. Stages without softened ReLUs store the inputs of least loss."""
    problem = _labelled(search, rows, runs)
    distance = problem.mismatch.distance
    if stage.variances is not None:
        distance = replace(distance, variances=stage.variances, variance=stage.variance)
    if int(search.spent[rows].min()) >= limit:
        return x
    if stage.width and stage.variances is not None:
        weight = prior_weight(torch.full_like(search.zero_loss, stage.variance), absolute=distance.kind == "l1")
    elif search.noise_weight is not None:
        weight = search.noise_weight
        if problem.noise.bound and distance.kind == "l2":
            weight = torch.minimum(weight, 2 * search.residual / search.coordinates.clamp_min(1))
        if stage.weight is not None and stage.model is not search.problem.reading.model:
            weight = torch.maximum(weight, stage.weight * search.zero_loss)  # softened ReLUs add an error
    elif stage.weight is not None:
        weight = stage.weight * (torch.ones_like(search.zero_loss) if stage.cosine else search.zero_loss)
    else:
        weight = 2 * search.loss.where(search.loss.isfinite(), search.residual) / search.coordinates.clamp_min(1)
        weight = weight.where(weight.isfinite(), _FAINT * search.zero_loss)
    initial = search.zero_loss.new_zeros(len(search.zero_loss), x[0].numel())
    at = rows.to(initial.device)
    initial[at] = stage.space.variables(x).flatten(1)
    staged_problem = replace(
        problem,
        space=stage.space,
        initial=initial,
        energy_weight=weight,
        mismatch=replace(
            problem.mismatch,
            reading=replace(problem.reading, model=stage.model, description=_softened(problem.reading, stage.width)),
            distance=replace(distance, kind="cosine") if stage.cosine else distance,
        ),
    )
    after, fall = _FLAT_END if last else _FLAT_STAGE
    free = search.noise_weight is None and stage.weight is None
    limits = RowLimits(
        evaluations=limit,
        stop_loss=search.stop / _TOLERANCE,
        flat_after=after * x.shape[1],
        least_fall=fall,
        precise_after=_PRECISE_AFTER * x.shape[1],
        precision=_PRECISION if free and problem.reading.kind.spatial else None,
    )
    solution = minimise(
        staged_problem, search.solver, limits, rows, chunk=search.budget.chunk, spent=search.spent[rows], traced=0
    )
    search.spent[rows] = solution.evaluations
    variables = solution.x.unflatten(1, _size(problem))
    x, energy = stage.space.with_energy(variables)
    if stage.model is search.problem.reading.model:
        search.residual[at] = (solution.loss - weight[at] * energy.sum(1)).clamp_min(0)
    if stage.model is search.problem.reading.model and not stage.width:
        _keep(search, rows, runs, x, search.residual[at] if search.noise_weight is None else solution.loss)
    return x


def _softened(reading: Reading, width: float) -> Description | None:
    return reading.description.softened(width) if reading.description is not None and width else reading.description


def _keep(search: _Search, rows: Tensor, runs: Tensor, x: Tensor, loss: Tensor) -> None:
    better = loss < search.loss[rows.to(loss.device)]
    chosen, known = rows[better.cpu()], runs[better.cpu()]
    at = chosen.to(loss.device)
    search.loss[at], search.point[at], search.runs[chosen] = loss[better], x[better], known
    search.marks.append(int(search.spent.max()))
    search.losses.append(search.loss.clone())
    search.points.append(search.point[: search.budget.traced].clone())


def _labelled(search: _Search, rows: Tensor, runs: Tensor) -> MatchingProblem:
    labels = search.hypotheses[:, 0].clone()
    labels[rows] = search.hypotheses[rows, runs]
    return replace(search.problem, labels=labels)


def _variables(search: _Search, x: Tensor) -> Tensor:
    assert search.problem.space is not None
    return search.problem.space.variables(x).flatten(1)


def _size(problem: MatchingProblem) -> tuple[int, int]:
    return problem.examples, problem.values
