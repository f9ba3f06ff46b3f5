"""Parts of an evaluation in `map`'s last stage: `python -P tests/benchmarks/evaluation.py --data mnist`.

CPU milliseconds, medians, one thread: search space and its derivative, gradients and their derivative, solver's step,
whole evaluation. "built": seconds to fit the space, once for all readings. "full": a matrix from 2048 products;
"chosen": the matrix by `equal_curvature`.
"""

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median
from unittest import mock

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
import measures

from bench.attacks.objective.mismatch import observations
from bench.attacks.search import curvature, tiles
from bench.attacks.search.prior import NoiseModel, Prior
from bench.attacks.search.probable import mismatch_of
from bench.attacks.search.problem import MatchingProblem
from bench.attacks.search.space import Space, public_space
from bench.attacks.solvers.lbfgs import Lbfgs
from bench.gradients import group_gradients, one_hot
from bench.trip import Reading

timed = partial(measures.timed, clock=time.process_time)  # other work may share the machine
COUNTS = (1, 8, 32)
STEPS = 40  # of the solver, at least: history makes later steps dearer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["mnist", "cifar10"])
    parser.add_argument("--data-dir", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| data | matrix | built, s | victims | space | gradients | solver | evaluation, ms |\n|" + "---|" * 8)
    for data in args.data:
        case = measures.case(data, max(COUNTS), args.data_dir)
        prior = public_space(case.reading)
        for name in ("full", "chosen"):
            tiles_of = (lambda shape: None) if name == "full" else tiles.tiles_of
            with mock.patch.object(curvature, "tiles_of", tiles_of):
                seconds, space = timed(partial(curvature.equal_curvature, prior, case.reading, measures.KEY))
            for count in COUNTS:
                cells = [f"{ms:.2f}" for ms in parts(case.some(range(count)), case.labels[:count], space)]
                print(f"| {data} | {name} | {seconds:.2f} | {count} | {' | '.join(cells)} |", flush=True)


def parts(reading: Reading, labels: Tensor, space: Space) -> tuple[float, float, float, float]:
    """Milliseconds of space, gradients, solver's step and whole evaluation, with all the reading's rows at once."""
    count = len(reading)
    zeros = torch.zeros_like(labels)
    problem = MatchingProblem(
        mismatch=mismatch_of(reading),
        observed=observations(reading),
        labels=labels[:, None],
        start_kind="grey",
        prior=Prior(),
        noise=NoiseModel.of(reading, 1),
        key=measures.KEY,
        space=space,
        energy_weight=torch.full((count,), 1e-6),
        tolerance=1e-5,
    )
    evaluate = problem.subset(torch.arange(count), zeros)
    x = space.variables(reading.public_inputs[:count].flatten(1))
    solver = Lbfgs(history=100, line_search="backtracking")
    state, scale = solver.init(x), problem.loss_scale(torch.arange(count))
    steps, whole = [], []
    for _ in range(STEPS):
        taken, (loss, gradient) = timed(partial(evaluate, state.trial))
        whole.append(taken)
        taken, state = timed(partial(solver.step, state, scale * loss, scale[:, None] * gradient))
        steps.append(taken)
    gradients = [timed(partial(_gradients, reading, labels))[0] for _ in range(STEPS)]
    through = [timed(partial(_through, space, x))[0] for _ in range(STEPS)]
    of_space, of_gradients, of_solver, of_all = (1e3 * median(each) for each in (through, gradients, steps, whole))
    return of_space, of_gradients, of_solver, of_all + of_solver


def _through(space: Space, w: Tensor) -> Tensor:
    w = w.detach().requires_grad_()
    x, energy = space.with_energy(w)
    (gradient,) = torch.autograd.grad(x.sum() + energy.sum(), w)
    return gradient


def _gradients(reading: Reading, labels: Tensor) -> Tensor:
    x = reading.public_inputs[: len(labels), None].clone().requires_grad_()
    weights = {name: value[0] for name, value in reading.weights.items()}
    targets = one_hot(labels[:, None], reading.classes, x.dtype)
    sent = group_gradients(reading.model, weights, x, targets, differentiable=True)
    gaps = [((value - reading.values[name][:, 0]) ** 2).sum() for name, value in sent.items()]
    (gradient,) = torch.autograd.grad(torch.stack(gaps).sum(), x)
    return gradient


if __name__ == "__main__":
    main()
