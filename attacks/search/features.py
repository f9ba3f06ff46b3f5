"""Search for the images with known features, the inputs of a fully connected layer behind convolutions."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.attacks.first_layer.below import Below
from bench.attacks.search.prior import outside
from bench.attacks.search.space import Gaussian, public_space
from bench.attacks.solvers.base import Evaluate, RowLimits
from bench.attacks.solvers.lbfgs import Lbfgs
from bench.attacks.solvers.loop import minimise
from bench.trip import Reading

_STAGES = ((1e-4, 1 / 3), (1e-6, 1.0))  # weight of -log p, and the share of the evaluations at the stage's end
_FLAT, _FALL = 20, 0.02  # a stage ends if its loss falls by less than the share (second) over the evaluations (first)
_UNIT = 1e5  # factor on losses for the solver, whose tolerances are absolute
_CHUNK = 128  # images in work at once


def images_of(below: Below, features: Tensor, reading: Reading, evaluations: int = 300) -> tuple[Tensor, Tensor]:
    """Recover images from known features, for example from the gradient of a fully connected layer behind convolutions.
    For each image, a search minimises the squared distance to the features, plus the weighted -log p of a Gaussian
    prior fitted to public images, from the mean public image on. Return the images (image, *shape), and the evaluations
    used for each (image,).

    - `below`: the convolutions, which map images to features.
    - `features` (image, feature): the known features.
    - `reading`: the attacked readings, source of the public images.
    - `evaluations`: limit per image."""
    like = next(iter(below.weights.values()))
    space = public_space(reading)
    mean = below.features_of_all(reading.public_mean[None].to(like)).to(like)
    u, spent = like.new_zeros(len(features), reading.public_mean.numel()), torch.zeros(len(features)).long()
    rows = torch.arange(len(features))
    for weight, until in _STAGES if len(features) else ():
        problem = _Images(
            features=below.features,
            known=features.to(like),
            scale=(features.to(like) - mean).square().sum(1).clamp_min(torch.finfo(like.dtype).tiny),
            space=space,
            weight=weight,
            initial=u,
            value_range=reading.value_range,
        )
        limits = RowLimits(
            evaluations=max(1, round(until * evaluations)), flat_after=_FLAT, least_fall=_FALL, explained=torch.inf
        )
        solver = Lbfgs(line_search="backtracking")
        solution = minimise(problem, solver, limits, rows, chunk=_CHUNK, spent=spent, traced=0)
        u, spent = solution.x, solution.evaluations
    return space.inputs(u).reshape(-1, *below.shape), spent


@dataclass(frozen=True, slots=True, kw_only=True)
class _Images:
    """Problem for a solver, with a row per image. The loss is the squared distance to the `known` features (row,
    feature), divided by `scale` (row,), plus the excess over the data's range, plus -log p times `weight`."""

    features: Callable[[Tensor], Tensor]
    known: Tensor
    scale: Tensor
    space: Gaussian
    weight: float
    initial: Tensor  # (row, variable)
    value_range: tuple[float, float]

    def start(self, row: int, restart: int) -> Tensor:
        return self.initial[row]

    def zero_gradient_loss(self, rows: Tensor) -> Tensor:
        return self.initial.new_ones(len(rows))

    def noise_floor(self, rows: Tensor) -> Tensor:
        return self.initial.new_zeros(len(rows))

    def in_range(self, x: Tensor) -> Tensor:
        return self.space.inputs(x) / (self.value_range[1] - self.value_range[0])

    def loss_scale(self, rows: Tensor) -> Tensor:
        return self.initial.new_full((len(rows),), _UNIT)

    def subset(self, rows: Tensor, restarts: Tensor) -> Evaluate:
        known, scale = (value[rows.to(value.device)] for value in (self.known, self.scale))

        def evaluate(u: Tensor) -> tuple[Tensor, Tensor]:
            u = u.detach().requires_grad_()
            inputs, energy = self.space.with_energy(u)
            distance = (self.features(inputs) - known).square().sum(1) / scale
            beyond = outside(inputs[:, None], *self.value_range) / inputs.shape[1]
            loss = distance + beyond + self.weight * energy
            (gradient,) = torch.autograd.grad(loss.sum(), u)
            return loss.detach(), gradient

        return evaluate
