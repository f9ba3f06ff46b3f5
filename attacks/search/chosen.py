"""Search behind a mean over randomly masked messages, by the mean's likelihood.

At each coordinate, a client sends 0 or the coordinate's value, so the sum over K clients has 2^K possible values. The
search begins with a single Gaussian in place of this distribution. Then each possible sum gets a Gaussian, narrower
from stage to stage. A narrow mixture shows which client sent which coordinate."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.attacks.labels.hypotheses import label_hypotheses
from bench.attacks.objective.choices import few_sums, surprise
from bench.attacks.objective.mismatch import observations
from bench.attacks.search.clients import joined
from bench.attacks.search.probable import mismatch_of
from bench.attacks.search.space import Gaussian, public_space
from bench.attacks.solvers.base import Evaluate, RowLimits
from bench.attacks.solvers.lbfgs import Lbfgs
from bench.attacks.solvers.loop import minimise
from bench.gradients import group_gradients, one_hot
from bench.rng import Key
from bench.trip import Budget, Description, Reading, Reconstruction, Status, Tensors

# Width of the Gaussians (`surprise`) in a stage, and share of the evaluations at the stage's end.
_STAGES = ((torch.inf, 0.35), (0.5, 0.48), (0.25, 0.61), (0.12, 0.74), (0.06, 0.87), (0.03, 1.0))
_FLOOR = 1e-2  # of the mean's root mean square over a tensor: least deviation of a sum
_SPREAD = 0.1  # deviation of the first variables
_HISTORY = 50
_NOTE = "random choices behind the mean: searched by the likelihood of each possible sum of the clients' values"


def by_choices(reading: Reading, budget: Budget, key: Key) -> Reconstruction | None:
    """Attack a mean over clients' randomly masked messages by the mean's likelihood, from a wide to a narrow
    distribution around each possible sum. Public examples with the client's label give the prior. Return None for a
    reading without random choices, for quantised messages (`by_client`), for several examples in a client, for several
    observations (repeated reports), for too many sums, and without labels.

    - `reading`: the attacked means.
    - `budget`: the attack's limits.
    - `key`: draws the first candidates and the start of a search for labels."""
    description = reading.description
    if description is None or description.clients is not None or len(reading.rounds) > 1:
        return None
    if reading.senders == 1 or reading.senders != reading.examples:
        return None
    observed = observations(reading)[0]
    alike = {name: value[:1].expand(reading.senders, *value.shape[1:]) for name, value in observed.items()}
    known = few_sums(description, alike)
    if known is None or len(next(iter(known.values.values()))) == 1:
        return None
    labels = label_hypotheses(reading, observed, 1, key)[:, 0]
    if bool((labels < 0).any()):
        return None
    return joined(
        [
            _searched(replace(reading.of([row]), labels=labels[row : row + 1]), description, budget, key)
            for row in range(len(reading))
        ]
    )


def _searched(one: Reading, description: Description, budget: Budget, key: Key) -> Reconstruction:
    assert one.labels is not None
    observed, labels = observations(one)[0], one.labels[0]
    spaces = [public_space(one, label) for label in labels.tolist()]
    like = next(iter(observed.values()))
    random = key.generator("start", one.indices[0], 0, 0)
    size = one.public_mean.numel()
    u = _SPREAD * torch.from_numpy(random.standard_normal((1, one.examples * size))).to(like)
    spent, solver = torch.zeros(1, dtype=torch.long), Lbfgs(history=_HISTORY, line_search="backtracking")
    total = {name: one.senders * value[0] for name, value in observed.items()}
    for width, until in _STAGES:
        limits = RowLimits(evaluations=max(1, round(until * budget.evaluations)))
        if int(spent) < limits.evaluations:
            sums = _Sums(
                one=one,
                description=description,
                total=total,
                floor={name: (_FLOOR * value).square().mean() for name, value in observed.items()},
                spaces=spaces,
                width=width,
                initial=u,
            )
            solution = minimise(sums, solver, limits, torch.zeros(1, dtype=torch.long), spent=spent, traced=0)
            u, spent = solution.x, solution.evaluations
    inputs = torch.stack(
        [space.inputs(part) for space, part in zip(spaces, u.unflatten(1, (-1, size))[0], strict=True)]
    )
    inputs = inputs.reshape(1, one.examples, *one.shape)
    targets = one_hot(one.labels, one.classes, inputs.dtype).to(inputs.device)
    loss = mismatch_of(one)([observed], inputs, targets, differentiable=False)
    status: Status = "ok" if bool(loss.isfinite().all()) else "nan"
    return Reconstruction(
        inputs=inputs,
        labels=one.labels.clone(),
        loss=loss,
        evaluations=spent,
        outer=solver.outer(spent),
        restarts=torch.zeros_like(spent),
        status=(status,),
        notes=(_NOTE,),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sums:
    """Problem for a solver, with a single row for a single reading: minus the sum's log density, plus -log p. The
    variables belong to all examples together."""

    one: Reading
    description: Description
    total: Tensors  # sum over clients, name → (*shape)
    floor: Tensors  # least variance, name → ()
    spaces: list[Gaussian]  # of each example
    width: float
    initial: Tensor  # (1, variable)

    def start(self, row: int, restart: int) -> Tensor:
        return self.initial[0]

    def zero_gradient_loss(self, rows: Tensor) -> Tensor:
        return self.initial.new_ones(len(rows))

    def noise_floor(self, rows: Tensor) -> Tensor:
        return self.initial.new_zeros(len(rows))

    def in_range(self, x: Tensor) -> Tensor:
        low, high = self.one.value_range
        return self._images(x)[0].flatten(1) / (high - low)

    def loss_scale(self, rows: Tensor) -> Tensor:
        return self.initial.new_ones(len(rows))

    def subset(self, rows: Tensor, restarts: Tensor) -> Evaluate:
        one = self.one
        assert one.labels is not None
        weights = {name: value[0] for name, value in one.weights.items()}
        targets = one_hot(one.labels[0][:, None], one.classes, self.initial.dtype).to(self.initial.device)

        def evaluate(u: Tensor) -> tuple[Tensor, Tensor]:
            u = u.detach().requires_grad_()
            images, energy = self._images(u)
            each = images.reshape(one.examples, 1, *one.shape)
            updates = group_gradients(one.model, weights, each, targets, differentiable=True)
            outcomes = self.description.outcomes(updates)
            assert outcomes is not None
            loss = surprise(outcomes, self.total, self.width, self.floor) + energy
            (gradient,) = torch.autograd.grad(loss.sum(), u)
            return loss.detach(), gradient

        return evaluate

    def _images(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs (1, example, value) and -log p (1,)."""
        parts = u.unflatten(1, (len(self.spaces), -1))[0]
        pairs = [space.with_energy(part) for space, part in zip(self.spaces, parts, strict=True)]
        return torch.stack([inputs for inputs, _ in pairs])[None], torch.stack([energy for _, energy in pairs]).sum()[
            None
        ]
