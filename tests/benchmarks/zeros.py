"""Why an attack gets nothing from a mean of clients: `python -P tests/benchmarks/zeros.py [DEFENSE …]`.

MNIST, eight clients with one example each, the first reading of weight seeds 0 and 1.  A row a defense (`sign`,
`prune:share=.99,at=example`):

- From the truth: the last stage of `map` begins at the true examples; its median PSNR.  The result below 20 dB means
  that the noise, or the prior, prefers other examples.
- Reference: the median PSNR of the linear-Gaussian estimate at the truth, which the given noise leaves.  Masks and
  rounding are linearised: masks known (top-k, pruning) or hidden (random pruning), rounding as noise of its variance.
"""

import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from bench.answer.context import Memory, RunContext
from bench.answer.readings import take_reading
from bench.answer.setup import load_data, prepare, source_of
from bench.answer.truth import truth_from
from bench.answer.victims import batches_of
from bench.attacks.objective.mismatch import observations
from bench.attacks.objective.rescale import rescaled
from bench.attacks.search.prior import NoiseModel, Prior, prior_weight
from bench.attacks.search.probable import mismatch_of
from bench.attacks.search.problem import MatchingProblem
from bench.attacks.search.space import linear_part, public_space
from bench.attacks.solvers.base import RowLimits
from bench.attacks.solvers.lbfgs import Lbfgs
from bench.attacks.solvers.loop import minimise
from bench.cell import AttackCell
from bench.gradients import group_gradients, one_hot
from bench.matrix.expand import expand
from bench.matrix.read import read
from bench.rng import Key
from bench.sweep.plan import Resolver
from bench.trip import Reading

DATA = Path(os.environ["BENCH_DATA"]) if "BENCH_DATA" in os.environ else None
SEEDS, CLIENTS, EVALUATIONS = (0, 1), 8, 150
DIRECTIONS = 300  # of the prior with the largest variances; the rest of an example is taken as known
FAINT = 2e-9  # weight of the prior without noise, as a share of a zero gradient's loss
STEP = 1e-4
Law = Callable[[Tensor, list[int]], tuple[Tensor, Tensor]]  # a client's gradient → factors, variances


def kept(share: float) -> Law:
    def law(g: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor]:
        mask = torch.zeros_like(g)
        mask[g.abs().topk(len(g) - round(share * len(g))).indices] = 1
        return mask, torch.full_like(g, 1e-10)

    return law


def noise(variance: float) -> Law:
    return lambda g, sizes: (torch.ones_like(g), torch.full_like(g, CLIENTS * variance))


def hidden(g: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor]:
    above = (g.abs() > 1e-4).to(g)
    chance = min(1.0, 0.3 * len(g) / max(1.0, float(above.sum())))
    return chance * above, chance * (1 - chance) * above * g.square()


def rounded(step: Callable[[Tensor], Tensor]) -> Law:
    def law(g: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor]:
        steps = torch.cat([step(part).expand(len(part)) for part in g.split(sizes)])
        level = g / steps
        above = level - level.floor()
        return torch.ones_like(g), steps.square() * above * (1 - above)

    return law


LAWS: dict[str, Law] = {
    "top-k": kept(0.99),
    "prune:share=.99,at=example": kept(0.99),
    "prune:share=.7": kept(0.7),
    "random-prune": hidden,
    "gaussian": noise(0.01 / CLIENTS),
    "gaussian:at=example,variance=.1": noise(0.1 / CLIENTS),
    "laplace": noise(0.01 / CLIENTS / 2),  # a Laplace law's Fisher information is 2 / variance
    "qsgd": rounded(lambda part: part.norm() / max(1, round(len(part) ** 0.5))),
    "terngrad": rounded(lambda part: torch.minimum(2.5 * part.std(correction=0), part.abs().max())),
}


def cell_of(defense: str, seed: int, folder: Path) -> AttackCell:
    name, _, options = defense.partition(":")
    given = "".join(
        f', {key} = "{value}"' if value.isalpha() else f", {key} = {float(value)}"
        for key, value in (item.split("=") for item in options.split(",") if item)
    )
    path = folder / "one.toml"
    path.write_text(
        f'title = "one"\n[axes]\ndataset = ["mnist"]\nmodel = ["dlg-lenet"]\nattack = ["map"]\npoint = ["aggregate"]\n'
        f'federated = [{{ per_round = {CLIENTS}, batch = 1 }}]\ngrants = [["labels"]]\nknowledge = ["adaptive"]\n'
        f'seed = [{seed}]\nreadings = 1\ndefense = [{{ name = "{name}"{given} }}]\n'
    )
    (planned,) = expand(read(path), Resolver(DATA).data)
    assert isinstance(planned.cell, AttackCell)
    return planned.cell


def psnr(error: Tensor) -> float:
    return float(-10 * torch.log10(error))


def from_truth(reading: Reading, x: Tensor, seed: int) -> list[float]:
    """PSNR of each example after the last stage's search from the true inputs `x` (1, example, value)."""
    observed, space = observations(reading), public_space(reading)
    noises = NoiseModel.of(reading, len(observed))
    problem = MatchingProblem(
        mismatch=mismatch_of(reading),
        observed=observed,
        start_kind="grey",
        prior=Prior(),
        noise=replace(noises, weight=0.0),
        key=Key.of_attacker(seed),
        labels=reading.labels,
        space=space,
        initial=space.variables(x).flatten(1),
        tolerance=1e-5,
    )
    rows = torch.arange(1)
    weight = FAINT * problem.zero_gradient_loss(rows)
    if noises.variance:
        weight = prior_weight(problem.variances(rows), absolute=problem.mismatch.distance.kind == "l1")
    problem = replace(problem, energy_weight=weight)
    solver = Lbfgs(history=100, line_search="backtracking")
    solution = minimise(problem, solver, RowLimits(evaluations=EVALUATIONS, stop_loss=1e-4), rows)
    found, _ = problem.split(solution.x)
    return [psnr(error) for error in (found.flatten(2).clamp(0, 1) - x).square().mean(2)[0]]


def reference(reading: Reading, x: Tensor, labels: Tensor, law: Law) -> list[float]:
    """PSNR of each example's best linear estimate, with gradients linear around the inputs `x` (1, example, value)."""
    weights = {name: value[0].double() for name, value in reading.weights.items()}
    sizes = [value[0, 0].numel() for value in reading.values.values()]

    def gradients(inputs: Tensor, label: Tensor) -> Tensor:
        targets = one_hot(label.expand(len(inputs), 1), reading.classes, torch.float64)
        each = group_gradients(
            reading.model, weights, inputs.reshape(len(inputs), 1, *reading.shape), targets, differentiable=False
        )
        return torch.cat([each[name].flatten(1) for name in reading.values], 1)

    space = public_space(reading)
    left, scale, _ = torch.linalg.svd(linear_part(space).double().T)
    factor = left[:, :DIRECTIONS] * scale[:DIRECTIONS]
    variables = ((x[0].double() - space.mean.double().flatten()) @ left[:, :DIRECTIONS] / scale[:DIRECTIONS]).flatten()
    columns, variances = [], torch.zeros(sum(sizes), dtype=torch.float64)
    for one, label in zip(x[0].double(), labels[0], strict=True):
        moves = STEP * factor.T
        slope = torch.cat(
            [gradients(one + part, label) - gradients(one - part, label) for part in moves.split(100)]
        ) / (2 * STEP)
        factors, variance = law(gradients(one[None], label)[0], sizes)
        columns.append(slope.T * factors[:, None] / CLIENTS)
        variances += variance / CLIENTS**2
    design = torch.cat(columns, 1) / variances.clamp_min(1e-12).sqrt()[:, None]
    information = design.T @ design
    gain = torch.linalg.inv(information + torch.eye(len(information), dtype=torch.float64))
    errors = []
    for rows in torch.arange(len(variables)).split(DIRECTIONS):
        bias = factor @ (gain[rows] @ variables)
        spread = factor @ (gain[rows] @ information @ gain[rows].T)
        errors.append(psnr((bias.square().sum() + (spread * factor).sum()) / len(bias)))
    return errors


def main(defenses: list[str]) -> None:
    print("| defense | from the truth | reference |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        memory, context = Memory(), RunContext(run=Path(folder), data_dir=DATA)
        for defense in defenses or list(LAWS):
            ends, bounds = list[float](), list[float]()
            for seed in SEEDS:
                cell = cell_of(defense, seed, Path(folder))
                setup = prepare(cell, source_of(cell, load_data(cell, context, memory), context.run), context)
                truth = truth_from(cell, setup.source)
                reading = take_reading(cell, setup, truth, batches_of(cell, setup, truth.victims, truth.point))
                order = truth.examples.labels[0].sort(stable=True).indices
                x, labels = truth.examples.inputs[:, order].flatten(2), truth.examples.labels[:, order]
                ends += from_truth(rescaled(reading), x, seed)
                bounds += reference(reading, x, labels, LAWS[defense]) if defense in LAWS else []
            print(f"| {defense} | {median(ends):.1f} | {f'{median(bounds):.1f}' if bounds else '–'} |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
