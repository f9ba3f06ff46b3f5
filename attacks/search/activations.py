"""Start of a search: the most probable example whose values inside a ReLU net equal the known values (`layerwise.py`).

An evaluation needs a first derivative through the net's first layers, and no second derivative. If values are known
down to the first convolution, the problem is convex."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bench.attacks.search.layerwise import Known, chain, known_values
from bench.attacks.search.space import Gaussian
from bench.attacks.solvers.base import Evaluate, RowLimits
from bench.attacks.solvers.lbfgs import Lbfgs
from bench.attacks.solvers.loop import minimise
from bench.trip import Reading

_STAGES = ((1e-4, 0.4), (1e-6, 1.0))  # weight of -log p as a share of the known energy; share of the evaluations
_FLAT, _FALL = 20, 0.02  # a stage ends if its loss falls by less than the share (second) over the evaluations (first)
_UNIT = 1e5  # factor on losses for the solver, whose tolerances are absolute
_HISTORY = 100
_LEAST = 10  # evaluations
_PUBLIC = 500  # public examples for mean values


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Result of `start_by_layers`: an example for each reading (observed update) in a batch, from which a later search
    starts."""

    inputs: Tensor
    """Inputs of the first candidates (reading, 1, value)."""
    found: Tensor
    """Mask (reading,): True for a candidate from a search, False for the public mean."""
    evaluations: Tensor
    """Number of evaluations spent on each reading (reading,)."""
    settles: bool = True
    """True: a reading that such a candidate explains needs no further start. False: the first start always runs."""


def start_by_layers(
    reading: Reading, observed: list[dict[str, Tensor]], space: Gaussian, evaluations: int
) -> Start | None:
    """Return first candidates for a later search, from values inside the net that the gradient determines.

    These values are computed layer by layer (`known_values`). The search here minimises the squared distance to these
    values plus a weighted -log p, with the prior's density p.

    - `reading`: the attacked readings, with the model.
    - `observed`: the observations (repeated reports on the same examples), each name → (reading, *shape).
    - `space`: search space of the inputs, with the prior.
    - `evaluations`: limit per reading.

    Return None if the evaluations are too few, if the model is no sequence of convolutions with ReLUs and a linear
    layer, or if a reading is not the undefended gradient of a single example."""
    layers = chain(reading.model)
    alone = len(observed) == 1 and reading.examples == 1 and reading.steps == 1 and reading.senders == 1
    if layers is None or not alone or reading.description is not None or evaluations < _LEAST:
        return None
    gradients = observed[0]
    weights = {name: value[0] for name, value in reading.weights.items()}
    known = list(_known(reading, gradients, layers))
    rows = torch.tensor([row for row, each in enumerate(known) if each is not None], dtype=torch.long)
    like = next(iter(gradients.values()))
    u = like.new_zeros(len(known), reading.public_mean.numel())
    spent = torch.zeros(len(known), dtype=torch.long)
    for weight, until in _STAGES if len(rows) else ():
        problem = _Activations(
            model=reading.model,
            weights=weights,
            shape=reading.shape,
            space=space,
            known=known,
            weight=weight,
            initial=u,
            span=reading.value_range[1] - reading.value_range[0],
        )
        limits = RowLimits(
            evaluations=round(until * evaluations), flat_after=_FLAT, least_fall=_FALL, explained=torch.inf
        )
        solver = Lbfgs(history=min(_HISTORY, evaluations), line_search="backtracking")
        solution = minimise(problem, solver, limits, rows, chunk=32, spent=spent[rows], traced=0)
        u[rows.to(u.device)], spent[rows] = solution.x, solution.evaluations
    found = torch.zeros(len(known), dtype=torch.bool)
    found[rows] = True
    return Start(inputs=space.inputs(u)[:, None], found=found, evaluations=spent)


def _known(reading: Reading, gradients: dict[str, Tensor], layers: list[nn.Conv2d]) -> Iterator[Known | None]:
    weights = {name: value[0].double().cpu() for name, value in reading.weights.items()}
    inputs, x = [], reading.public_inputs[:_PUBLIC].double().cpu()
    for number, layer in enumerate(layers):
        inputs.append(x.mean(0))
        weight, bias = weights[f"{2 * number}.weight"], weights[f"{2 * number}.bias"]
        x = nn.functional.conv2d(x, weight, bias, layer.stride, layer.padding).clamp_min(0)
    inputs.append(x.mean(0))
    for row in range(len(reading)):
        yield known_values(
            layers, weights, {name: value[row].double().cpu() for name, value in gradients.items()}, inputs
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Activations:
    """Problem for a solver, with a row per reading. A row's variables are those of its single example, in `space`. The
    loss is the squared distance to the `known` values at a layer's input and output, plus -log p times `weight`. Each
    squared distance is divided by the known values' squared norm."""

    model: nn.Module
    weights: dict[str, Tensor]
    shape: tuple[int, ...]
    space: Gaussian
    known: list[Known | None]
    weight: float
    initial: Tensor  # (row, variable)
    span: float  # of the data's range

    def start(self, row: int, restart: int) -> Tensor:
        return self.initial[row]

    def zero_gradient_loss(self, rows: Tensor) -> Tensor:
        return self.initial.new_full((len(rows),), 2.0)

    def noise_floor(self, rows: Tensor) -> Tensor:
        return self.initial.new_zeros(len(rows))

    def in_range(self, x: Tensor) -> Tensor:
        return self.space.inputs(x) / self.span

    def loss_scale(self, rows: Tensor) -> Tensor:
        return self.initial.new_full((len(rows),), _UNIT)

    def subset(self, rows: Tensor, restarts: Tensor) -> Evaluate:
        groups = list(self._groups(rows))

        def evaluate(u: Tensor) -> tuple[Tensor, Tensor]:
            u = u.detach().requires_grad_()
            inputs, energy = self.space.with_energy(u)
            loss = self.weight * energy
            for group in groups:
                loss = loss.index_add(0, group.at, self._distance(group, inputs[group.at]))
            (gradient,) = torch.autograd.grad(loss.sum(), u)
            return loss.detach(), gradient

        return evaluate

    def _groups(self, rows: Tensor) -> Iterator["_Group"]:
        chosen = [self.known[row] for row in rows.tolist()]
        for layer in sorted({each.layer for each in chosen if each is not None}):
            members = [(at, each) for at, each in enumerate(chosen) if each is not None and each.layer == layer]
            most = max(len(each.directions) for _, each in members)
            padded = [most - len(each.directions) for _, each in members]
            pad = nn.functional.pad
            yield _Group(
                layer=layer,
                at=torch.tensor([at for at, _ in members]).to(self.initial.device),
                directions=self._stacked(
                    [pad(e.directions, (0, 0, 0, n)) for (_, e), n in zip(members, padded, strict=True)]
                ),
                along=self._stacked([pad(e.along, (0, n)) for (_, e), n in zip(members, padded, strict=True)]),
                outputs=self._stacked([each.outputs for _, each in members]),
            )

    def _stacked(self, values: list[Tensor]) -> Tensor:
        return torch.stack(values).to(self.initial)

    def _distance(self, group: "_Group", inputs: Tensor) -> Tensor:
        x = self._through(0, group.layer, inputs.reshape(-1, *self.shape))
        z = self._through(group.layer, group.layer + 1, x)
        gaps = x.flatten(2) @ group.directions.mT - group.along
        # an output that is 0 may be any negative number before the ReLU
        above = torch.where(group.outputs > 0, z - group.outputs, z.clamp_min(0))
        return _share(gaps, group.along) + _share(above, group.outputs)

    def _through(self, first: int, end: int, x: Tensor) -> Tensor:
        assert isinstance(self.model, nn.Sequential)
        for number in range(first, end):
            prefix = f"{number}."
            own = {name.removeprefix(prefix): v for name, v in self.weights.items() if name.startswith(prefix)}
            x = functional_call(self.model[number], own, (x,))
        return x


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Known values of the rows that share the lowest known layer, in the variables' dtype and on their device."""

    layer: int
    at: Tensor  # (member,), positions among the rows
    directions: Tensor  # (member, direction, position)
    along: Tensor  # (member, channel, direction)
    outputs: Tensor  # (member, channel, height, width)


def _share(gaps: Tensor, values: Tensor) -> Tensor:
    tiny = torch.finfo(values.dtype).tiny
    return gaps.flatten(1).square().sum(1) / values.flatten(1).square().sum(1).clamp_min(tiny)
