"""Solvers against torch's own, row by row, and the loop's promises: budget, restarts, independent rows."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.attacks.solvers import lbfgs, loop
from bench.attacks.solvers.adam import Adam
from bench.attacks.solvers.base import Evaluate, RowLimits, Solution, Solver, State
from bench.attacks.solvers.lbfgs import Lbfgs, LbfgsState
from bench.attacks.solvers.loop import minimise
from bench.contracts.situations import data, model
from bench.gradients import group_gradients, one_hot

ROWS = torch.arange(3)


def _quadratic() -> tuple[Tensor, Evaluate]:
    """Three rows, each with its positive definite matrix and its centre."""
    torch.manual_seed(0)
    root = torch.randn(3, 40, 40, dtype=torch.float64) / 40**0.5
    matrix = root @ root.mT + 0.1 * torch.eye(40, dtype=torch.float64)
    centre = torch.randn(3, 40, dtype=torch.float64)

    def evaluate(x: Tensor) -> tuple[Tensor, Tensor]:
        step = (x - centre)[:, :, None]
        slope = matrix @ step
        return 0.5 * (step.mT @ slope)[:, 0, 0], slope[:, :, 0]

    return torch.randn(3, 40, dtype=torch.float64), evaluate


def _matching() -> tuple[Tensor, Evaluate]:
    """‖∇L(x) - g‖² for one digit each, dlg-lenet on 8×8 pixels, labels known."""
    module, weights = model()
    training = data().training
    truth = torch.from_numpy(training.floats(slice(0, 3))).double()
    targets = one_hot(torch.from_numpy(training.labels[:3]), 10, torch.float64)[:, None]
    observed = group_gradients(module, weights, truth[:, None], targets)

    def evaluate(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        sent = group_gradients(module, weights, x.reshape(3, 1, 1, 8, 8), targets, differentiable=True)
        gaps = [(sent[name] - observed[name]).square().flatten(1).sum(1) for name in sent]
        loss = torch.stack(gaps).sum(0)
        return loss.detach(), torch.autograd.grad(loss.sum(), x)[0]

    return torch.rand(3, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64), evaluate


def _trials(solver: Solver[Any], x: Tensor, evaluate: Evaluate, count: int) -> Tensor:
    """The points (evaluation, row, variable) at which a solver asks for the objective."""
    state = solver.init(x)
    trials = []
    for _ in range(count):
        trials.append(state.trial.clone())
        state = solver.step(state, *evaluate(state.trial))
    return torch.stack(trials)


def _reference(
    build: Callable[[list[Tensor]], torch.optim.Optimizer], x: Tensor, evaluate: Evaluate, count: int
) -> Tensor:
    """The same for an optimizer of torch's, one row at a time."""
    rows = []
    for row in range(len(x)):
        point = x[row].clone().requires_grad_()
        trials: list[Tensor] = []

        def closure(row: int = row, point: Tensor = point, trials: list[Tensor] = trials) -> float:
            trials.append(point.detach().clone())
            whole = x.clone()
            whole[row] = point.detach()
            loss, gradient = evaluate(whole)
            point.grad = gradient[row].clone()
            return float(loss[row])

        optimizer = build([point])
        while len(trials) < count:
            optimizer.step(closure)
        rows.append(torch.stack(trials[:count]))
    return torch.stack(rows, 1)


@pytest.mark.parametrize(("problem", "count"), [(_quadratic, 20), (_matching, 30)])
def test_lbfgs_without_search_is_torchs_to_1e_9(problem: Callable[[], tuple[Tensor, Evaluate]], count: int) -> None:
    """As the published loops call it, 20 evaluations an outer step; 30 cross into the second."""
    x, evaluate = problem()

    def torchs(points: list[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(points, lr=1, history_size=100, tolerance_change=0)

    ours = _trials(Lbfgs(line_search="none"), x, evaluate, count)
    theirs = _reference(torchs, x, evaluate, count)
    assert (theirs[-1] - theirs[0]).abs().max() > 0.1  # it went somewhere
    assert float((ours - theirs).abs().max()) < 1e-9


@pytest.mark.parametrize("history", [1, 2, 3])
def test_lbfgs_with_a_short_history_drops_the_oldest_pairs_as_torch_does(history: int) -> None:
    x, evaluate = _quadratic()

    def torchs(points: list[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(points, lr=1, max_iter=15, max_eval=15, history_size=history)

    ours = _trials(Lbfgs(line_search="none", history=history), x, evaluate, 15)
    assert float((ours - _reference(torchs, x, evaluate, 15)).abs().max()) < 1e-9


@pytest.mark.parametrize("room", [1, 2 * 2 * 40 * 8], ids=["one row a block", "blocks that grow smaller"])
def test_blocks_of_rows_change_no_step(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, evaluate = _quadratic()
    together = _trials(Lbfgs(line_search="backtracking"), 10 * x, evaluate, 30)
    monkeypatch.setattr(lbfgs, "_CACHE", room)
    apart = _trials(Lbfgs(line_search="backtracking"), 10 * x, evaluate, 30)
    assert float((together - apart).abs().max()) < 1e-9


@pytest.mark.parametrize("problem", [_quadratic, _matching])
def test_backtracking_never_accepts_a_rise(problem: Callable[[], tuple[Tensor, Evaluate]]) -> None:
    x, evaluate = problem()
    solver = Lbfgs(line_search="backtracking")
    state = solver.init(10 * x)
    accepted: list[Tensor] = []
    for _ in range(60):
        state = solver.step(state, *evaluate(state.trial))
        assert isinstance(state, LbfgsState)
        accepted.append(state.loss.clone())
    losses = torch.stack(accepted)
    assert bool((losses.diff(dim=0) <= 0).all())
    assert bool((losses[-1] < 0.5 * losses[0]).all())  # and it gets somewhere


def test_backtracking_finds_the_minimum_of_a_quadratic() -> None:
    x, evaluate = _quadratic()
    solver = Lbfgs(line_search="backtracking")
    state = solver.init(x)
    for _ in range(60):
        state = solver.step(state, *evaluate(state.trial))
    assert float(evaluate(state.x)[0].max()) < 1e-12


@pytest.mark.parametrize("problem", [_quadratic, _matching])
def test_adam_is_torchs(problem: Callable[[], tuple[Tensor, Evaluate]]) -> None:
    x, evaluate = problem()
    ours = _trials(Adam(rate=0.1), x, evaluate, 20)
    theirs = _reference(lambda points: torch.optim.Adam(points, lr=0.1), x, evaluate, 20)
    assert float((ours - theirs).abs().max()) < 1e-10


def test_adam_signed_in_a_box_with_decay_is_torchs_with_those() -> None:
    x, evaluate = _quadratic()
    ours = _trials(Adam(rate=0.2, signed=True, box=(-0.5, 0.5), milestones=(5, 9)), x, evaluate, 15)
    point = x.clone().requires_grad_()
    optimizer = torch.optim.Adam([point], lr=0.2)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [5, 9], 0.1)
    for trial in ours:
        torch.testing.assert_close(trial, point.detach(), rtol=0, atol=1e-10)
        point.grad = evaluate(point.detach())[1].sign()
        optimizer.step()
        schedule.step()
        point.data.clamp_(-0.5, 0.5)


# ------------------------------------------------------------------ the loop


@dataclass(frozen=True)
class _Problem:
    """Rows of `evaluate` (which takes all of them), counting evaluations and starts of each."""

    first: Tensor
    evaluate: Evaluate
    floor: float = 0.0
    counts: dict[int, int] = field(default_factory=dict)
    starts: list[tuple[int, int]] = field(default_factory=list)

    def start(self, row: int, restart: int) -> Tensor:
        self.starts.append((row, restart))
        draw = torch.Generator().manual_seed(100 * row + restart)
        return self.first[row] + restart * torch.randn(self.first.shape[1], generator=draw, dtype=torch.float64)

    def zero_gradient_loss(self, rows: Tensor) -> Tensor:
        return torch.ones(len(rows), dtype=torch.float64)

    def noise_floor(self, rows: Tensor) -> Tensor:
        return torch.full((len(rows),), self.floor, dtype=torch.float64)

    def loss_scale(self, rows: Tensor) -> Tensor:
        return torch.ones(len(rows), dtype=torch.float64)

    def in_range(self, x: Tensor) -> Tensor:
        return x

    def subset(self, rows: Tensor, restarts: Tensor) -> Evaluate:
        del restarts

        def evaluate(x: Tensor) -> tuple[Tensor, Tensor]:
            for row in rows.tolist():
                self.counts[row] = self.counts.get(row, 0) + 1
            whole = self.first.clone()
            whole[rows] = x
            loss, gradient = self.evaluate(whole)
            return loss[rows], gradient[rows]

        return evaluate


SOLVERS = [Lbfgs(line_search="none"), Lbfgs(line_search="backtracking"), Adam(rate=0.1)]
IDS = ["lbfgs", "backtracking", "adam"]


def _minimise(
    problem: _Problem, solver: Solver[Any], limits: RowLimits, rows: Tensor = ROWS, chunk: int | None = None
) -> Solution:
    return minimise(problem, solver, limits, rows, chunk=chunk)


@pytest.mark.parametrize("solver", SOLVERS, ids=IDS)
@pytest.mark.parametrize("restarts", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_row_alone_is_as_in_a_batch(solver: Solver[Any], restarts: int) -> None:
    # a bound that no run reaches at once, so that rows restart at times of their own
    limits = RowLimits(evaluations=20, restarts=restarts, abandon_above=1e-2, keep_below=1e-4)
    together = _minimise(_Problem(*_matching()), solver, limits)
    for row in range(3):
        alone = _minimise(_Problem(*_matching()), solver, limits, torch.tensor([row]))
        assert torch.allclose(alone.x[0], together.x[row], rtol=1e-9, atol=1e-9)
        assert alone.evaluations[0] == together.evaluations[row]
        assert alone.restarts[0] == together.restarts[row]


@pytest.mark.parametrize("solver", SOLVERS, ids=IDS)
@pytest.mark.parametrize("evaluations", [1, 2, 7, 30])
@pytest.mark.parametrize("restarts", [0, 1, 5])
def test_restarts_stay_inside_the_budget(solver: Solver[Any], evaluations: int, restarts: int) -> None:
    problem = _Problem(*_quadratic())
    limits = RowLimits(evaluations=evaluations, restarts=restarts, abandon_above=0.0, keep_below=0.0)
    solution = _minimise(problem, solver, limits)
    assert problem.counts == dict(enumerate(solution.evaluations.tolist()))
    assert max(problem.counts.values()) <= evaluations
    assert int(solution.restarts.max()) <= restarts
    assert sorted(problem.starts) == [(row, n) for row in range(3) for n in range(int(solution.restarts[row]) + 1)]


@pytest.mark.parametrize(
    ("rate", "least", "most"), [(0.3, 20, 60), (0.05, 135, 250), pytest.param(0.02, 1000, 2000, marks=pytest.mark.slow)]
)
def test_a_run_ends_once_its_points_are_precise(rate: float, least: int, most: int) -> None:
    """Gradient descent, whose error falls by 1 - rate per evaluation: to 1e-3 after 20, 135, 342. A slow run goes on
    until its points stand still."""
    target = torch.ones(3, 4, dtype=torch.float64)

    def evaluate(x: Tensor) -> tuple[Tensor, Tensor]:
        return 0.5 * (x - target).square().sum(1), x - target

    def run(precision: float | None) -> Solution:
        limits = RowLimits(evaluations=2000, precision=precision, precise_after=10, explained=1.0)
        return _minimise(_Problem(torch.zeros(3, 4, dtype=torch.float64), evaluate), Descent(rate), limits)

    solution = run(1e-3)
    error = (solution.x - target).square().mean(1).sqrt()
    assert (error < 1e-3).all()
    assert ((least <= solution.evaluations) & (solution.evaluations <= most)).all()
    assert (run(None).evaluations == 2000).all()


def test_an_unexplained_run_is_never_precise() -> None:
    def evaluate(x: Tensor) -> tuple[Tensor, Tensor]:
        return 2 + 0.5 * x.square().sum(1), x  # never below the zero-gradient loss, 1

    limits = RowLimits(evaluations=200, precision=1e-3, precise_after=10)
    problem = _Problem(torch.ones(3, 4, dtype=torch.float64), evaluate)
    assert (_minimise(problem, Descent(0.3), limits).evaluations == 200).all()


@dataclass(frozen=True)
class Descent(Solver[State]):
    """Gradient descent."""

    rate: float

    def init(self, x: Tensor) -> State:
        return State(trial=x, finished=torch.zeros(len(x), dtype=torch.bool))

    def step(self, state: State, loss: Tensor, gradient: Tensor) -> State:
        return State(trial=state.trial - self.rate * gradient, finished=state.finished)

    def outer(self, evaluations: Tensor) -> Tensor:
        return evaluations


def test_each_start_gets_its_share_and_the_best_point_of_all_runs_is_kept() -> None:
    problem = _Problem(*_quadratic())
    solution = _minimise(problem, Adam(rate=1e-3), RowLimits(evaluations=12, restarts=2))
    assert solution.restarts.tolist() == [2, 2, 2]
    assert solution.evaluations.tolist() == [12, 12, 12]
    loss, _ = problem.evaluate(solution.x)
    torch.testing.assert_close(loss, solution.loss)
    for row in range(3):
        starts = torch.stack([problem.start(row, n) for n in range(3)])
        whole = problem.first.expand(3, -1, -1).clone()
        whole[:, row] = starts
        firsts = torch.stack([problem.evaluate(point)[0][row] for point in whole])
        assert solution.loss[row] <= firsts.min()


@pytest.mark.parametrize("leave", [False, True])
def test_a_converged_run_is_restarted_unless_the_plan_leaves_it(leave: bool) -> None:
    """Every loss is .5 too high: the solver converges, and ends above `keep_below`."""
    x, evaluate = _quadratic()
    lifted = _Problem(x, lambda point: (evaluate(point)[0] + 0.5, evaluate(point)[1]))
    limits = RowLimits(evaluations=400, restarts=2, abandon_above=0.9, leave_stalled=leave)
    solution = _minimise(lifted, Lbfgs(line_search="backtracking"), limits)
    assert solution.restarts.tolist() == ([0] * 3 if leave else [2] * 3)
    worthless = _Problem(x, lambda point: (evaluate(point)[0] + 1.5, evaluate(point)[1]))
    solution = _minimise(worthless, Lbfgs(line_search="backtracking"), limits)
    assert solution.restarts.tolist() == [2] * 3, "no better than a zero gradient: restarted"


def test_a_run_that_is_good_enough_is_not_restarted() -> None:
    problem = _Problem(*_quadratic())
    solution = _minimise(problem, Lbfgs(line_search="backtracking"), RowLimits(evaluations=100, restarts=3))
    assert solution.restarts.tolist() == [0, 0, 0]
    assert int(solution.evaluations.max()) < 100  # it converged and ended
    assert float(solution.loss.max()) < 1e-4


def test_a_loss_within_twice_the_noise_floor_is_good_enough() -> None:
    """Every loss is .5 too high; noise of .3 explains that, noise of .2 does not."""
    x, evaluate = _quadratic()
    for floor, restarts in ((0.3, [0] * 3), (0.2, [2] * 3)):
        lifted = _Problem(x, lambda point: (evaluate(point)[0] + 0.5, evaluate(point)[1]), floor=floor)
        limits = RowLimits(evaluations=400, restarts=2, abandon_above=0.9)
        assert _minimise(lifted, Lbfgs(line_search="backtracking"), limits).restarts.tolist() == restarts


@pytest.mark.parametrize("solver", SOLVERS, ids=IDS)
def test_rows_that_are_not_finite_end_and_leave_the_others_alone(solver: Solver[Any]) -> None:
    first, clean = _quadratic()

    def broken(x: Tensor) -> tuple[Tensor, Tensor]:
        loss, gradient = clean(x)
        loss[1], gradient[1] = torch.nan, torch.nan
        return loss, gradient

    limits = RowLimits(evaluations=15)
    problem = _Problem(first, broken)
    solution, sound = _minimise(problem, solver, limits), _minimise(_Problem(first, clean), solver, limits)
    assert problem.counts[1] == 1
    assert torch.isinf(solution.loss[1])
    assert torch.isfinite(solution.x).all()
    for row in (0, 2):
        assert torch.allclose(solution.x[row], sound.x[row], rtol=1e-9, atol=1e-9)
        assert solution.evaluations[row] == sound.evaluations[row]


def test_a_gradient_that_is_not_finite_ends_a_run_and_a_restart_helps() -> None:
    first, clean = _quadratic()
    problem = _Problem(first, clean)

    def broken(x: Tensor) -> tuple[Tensor, Tensor]:
        loss, gradient = clean(x)
        if torch.equal(x[1], first[1]):  # the first start of row 1 alone
            gradient[1, 0] = torch.inf
        return loss, gradient

    problem = replace(problem, evaluate=broken)
    solution = _minimise(problem, Adam(rate=0.05), RowLimits(evaluations=20, restarts=1, abandon_above=1e9))
    assert solution.restarts[1] == 1
    assert torch.isfinite(solution.loss).all()


def test_the_losses_are_the_least_at_powers_of_two_and_at_the_end() -> None:
    solution = _minimise(_Problem(*_quadratic()), Adam(rate=0.1), RowLimits(evaluations=21))
    assert solution.marks == (1, 2, 4, 8, 16, 21)
    assert bool((solution.losses.diff(dim=0) <= 0).all())
    torch.testing.assert_close(solution.losses[-1], solution.loss)
    torch.testing.assert_close(solution.trajectory[-1], solution.x)


@pytest.mark.parametrize("solver", SOLVERS, ids=IDS)
@pytest.mark.parametrize("chunk", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_rows_that_wait_for_room_are_as_those_that_do_not(solver: Solver[Any], chunk: int) -> None:
    limits = RowLimits(evaluations=20, restarts=1, abandon_above=1e-2, keep_below=1e-4)
    together = _minimise(_Problem(*_matching()), solver, limits)
    one_by_one = _minimise(_Problem(*_matching()), solver, limits, chunk=chunk)
    assert torch.allclose(one_by_one.x, together.x, rtol=1e-9, atol=1e-9)
    assert one_by_one.evaluations.tolist() == together.evaluations.tolist()
    assert one_by_one.marks == together.marks
    assert torch.allclose(one_by_one.losses, together.losses, rtol=1e-9, atol=1e-9)
    assert torch.allclose(one_by_one.trajectory, together.trajectory, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("chunk", [2, 3])
@pytest.mark.parametrize("restarts", [0, 3])
def test_ended_rows_that_stay_in_the_batch_change_nothing(
    restarts: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where ended slots stay until they are many."""
    limits = RowLimits(evaluations=60, restarts=restarts)
    solver = Lbfgs(line_search="backtracking", tolerance_gradient=1e-4)
    usual = _minimise(_Problem(*_quadratic()), solver, limits, chunk=chunk)
    monkeypatch.setattr(loop, "_share_of_ended", lambda device: 0.6)
    stayed = _minimise(_Problem(*_quadratic()), solver, limits, chunk=chunk)
    assert len(set(usual.evaluations.tolist())) > 1 or restarts
    for item in fields(Solution):
        one, other = getattr(usual, item.name), getattr(stayed, item.name)
        if isinstance(one, Tensor):
            torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-12, msg=item.name)


def test_no_mark_is_named_twice() -> None:
    solution = _minimise(_Problem(*_quadratic()), Adam(rate=0.1), RowLimits(evaluations=16))
    assert solution.marks == (1, 2, 4, 8, 16)


def test_a_loss_below_the_stop_ends_a_row_when_it_is_compared() -> None:
    first, clean = _quadratic()
    limits = RowLimits(evaluations=100, stop_loss=1e9, look_every=7)
    solution = _minimise(_Problem(first, clean), Adam(rate=1e-3), limits)
    assert solution.evaluations.tolist() == [7, 7, 7]


def test_an_explained_row_ends_where_its_loss_falls_no_more() -> None:
    """Losses near .5 of the zero-gradient loss that stand still: seen at the second look, and only where that counts as
    explained.  One that goes on falling is left alone."""
    x, evaluate = _quadratic()

    def lifted(point: Tensor) -> tuple[Tensor, Tensor]:
        loss, gradient = evaluate(point)
        return 1e-9 * loss + 0.5, gradient

    limits = RowLimits(evaluations=30, flat_after=6, least_fall=0.01, explained=0.9)
    still = Adam(rate=1e-9)
    assert _minimise(_Problem(x, lifted), still, limits).evaluations.tolist() == [12, 12, 12]
    unexplained = replace(limits, explained=0.1)
    assert _minimise(_Problem(x, lifted), still, unexplained).evaluations.tolist() == [30, 30, 30]
    falling = replace(limits, explained=1e9)
    problem = _Problem(*_quadratic())
    whole = _minimise(problem, Adam(rate=0.01), replace(falling, flat_after=None))
    assert bool((whole.losses[-1] < 0.9 * whole.losses[-2]).all()), "it falls to the end"
    assert _minimise(_Problem(*_quadratic()), Adam(rate=0.01), falling).evaluations.tolist() == [30, 30, 30]


def test_outer_steps_are_counted_as_published() -> None:
    counts = torch.tensor([0, 1, 20, 21, 500])
    assert Lbfgs().outer(counts).tolist() == [0, 1, 1, 2, 25]
    assert Adam(rate=0.1).outer(counts).tolist() == [0, 1, 20, 21, 500]
