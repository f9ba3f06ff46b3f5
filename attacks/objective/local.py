"""Simulate (unroll) local training: a client's update after several local steps on candidates.

After the first step, each reading's simulated weights depend on its candidates. The computation graph is kept through
the weights, so distances to the update have exact derivatives."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from bench.errors import BenchError, NotApplicable
from bench.gradients import group_gradients, twice_under_vmap
from bench.training import loss_of
from bench.trip import AdamRule, Candidates, StepDefense, StepRule, Tensors

_CLIPPED = 1e-6  # torch adds this number to a norm
_CHECKPOINTED = (
    "the model computes layers again in the backward pass (torch.utils.checkpoint), so several local steps cannot be "
    "simulated; switch this off: the gradients stay the same"
)


def unrolled_update(
    model: nn.Module,
    weights: Tensors,
    inputs: Tensor,
    targets: Tensor,
    *,
    steps: int,
    rate: float,
    between: StepDefense | None = None,
    batches: Sequence[int] | None = None,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    adam: AdamRule | None = None,
    rule: StepRule | None = None,
) -> dict[str, Tensor]:
    """Simulate the update behind each reading (observed update) after `steps` local steps, in gradient units: name →
    (reading, *shape).

    - `weights`: shared start, name → (*shape); `rate`: η, the learning rate.
    - `inputs` (reading, step·example, *shape), `targets` (reading, step·example, class): candidates and label
      probabilities, in the order of the steps.
    - `batches`: number of examples in each step, with the sum step·example; None makes equal batches.
    - `between`: defense inside local steps (`Description.local_steps`), from the examples' gradients (reading, example,
      *shape) to the step's mean gradient ḡ; None takes the plain mean.
    - `momentum`, `weight_decay`, `adam`: the client's optimiser, SGD without `adam`.
    - `rule`: further options, such as a schedule or FedProx's term; None: none. A parameter's update is divided by the
      factor of its rate.

    Each step is w ← w - η ḡ with the mean gradient ḡ at the current weights (local SGD, McMahan et al. 2017, algorithm
    1). The result is (w_0 - w_L) / (η · steps). With `momentum` m and `weight_decay` λ each step is first v ← m v + ḡ +
    λ w, then w ← w - η v, from v = 0 at the start, as in `torch.optim.SGD`. The result is then (w_0 - w_L) / (η · steps
    · `momentum_gain`) - λ w_0, which equals the gradient if the gradient is constant. With `adam`, Adam's direction
    replaces ḡ, and the result is the mean direction, with weight decay. The result is differentiable through all steps
    if `inputs` or `targets` require a gradient.

    Raises `BenchError` if `batches` is None and `steps` does not divide the examples, and `NotApplicable` for a model
    whose batch statistics mix examples."""
    count, examples = inputs.shape[:2]
    if batches is None:
        if examples % steps:
            raise BenchError(
                f"{examples} examples are not {steps} local batches of one size; give a multiple of {steps}"
            )
        batches = (examples // steps,) * steps
    parts = [value.split(list(batches), dim=1) for value in (inputs, targets)]
    graph = torch.is_grad_enabled() and (inputs.requires_grad or targets.requires_grad)
    start = {name: value.expand(count, *value.shape) for name, value in weights.items()}
    local, rule = start, rule or StepRule()
    decays = {name: rule.decay(name, weight_decay) for name in weights}
    total: dict[str, Tensor] = {}
    kept: Tensors = {}
    velocity: Tensors = {}
    moments = _Moments()
    for step, (x, y) in enumerate(zip(*parts, strict=True)):
        shared = weights if step == 0 else None  # shared weights are cheaper
        if between is None:
            mean: Tensors = _mean_gradients(model, shared, local, x, y, graph)
        else:
            each = _example_gradients(model, shared, local, x, y, graph)
            mean = between(step, each, Candidates(inputs=x, targets=y, weights=shared or local))
        if rule.proximal and step:
            mean = {name: value + rule.proximal * (local[name] - start[name]) for name, value in mean.items()}
        if rule.kept and step:
            mean = {name: value + kept[name] for name, value in mean.items()}
        if rule.clip is not None:
            mean = _clipped(mean, rule.clip)
        kept = mean
        if adam is not None:
            mean = moments.direction(mean, local, adam, decays)
        elif any(decays.values()):
            mean = {name: value + decays[name] * local[name] for name, value in mean.items()}
        velocity = {n: momentum * velocity[n] + value for n, value in mean.items()} if momentum and step else mean
        way = {n: mean[n] + momentum * value for n, value in velocity.items()} if rule.nesterov else velocity
        if rule.schedule:
            way = {name: rule.schedule[step] * value for name, value in way.items()}
        total = {name: total[name] + way[name] if step else way[name] for name in weights}
        local = {name: value - rate * rule.factors.get(name, 1.0) * way[name] for name, value in local.items()}
    scale = steps * momentum_gain(momentum, steps, rule)
    update = {name: value / scale for name, value in total.items()}
    if adam is not None or not any(decays.values()):
        return update
    return {name: value - decays[name] * weights[name] for name, value in update.items()}


def _clipped(gradients: Tensors, clip: float) -> dict[str, Tensor]:
    """Shorten each reading's gradient, name → (reading, *shape), to the L2 length `clip`, as torch does."""
    squares = torch.stack([value.flatten(1).square().sum(1) for value in gradients.values()]).sum(0)
    lengths = squares.clamp_min(torch.finfo(squares.dtype).tiny).sqrt()
    factors = (clip / (lengths + _CLIPPED)).clamp_max(1.0)
    return {name: factors.reshape(-1, *[1] * (value.dim() - 1)) * value for name, value in gradients.items()}


class _Moments:
    """Adam's means of gradients and of squared gradients, over the steps so far."""

    def __init__(self) -> None:
        self._first: dict[str, Tensor] = {}
        self._second: dict[str, Tensor] = {}
        self._steps = 0

    def direction(
        self, gradients: Tensors, weights: Tensors, adam: AdamRule, decays: Mapping[str, float]
    ) -> dict[str, Tensor]:
        """Return the direction of Adam's next step, name → (reading, *shape), for the mean `gradients` at `weights`,
        both name → (reading, *shape). `adam` and the weight `decays`, by name, are the optimizer's options."""
        self._steps += 1
        one, two = adam.betas
        result = {}
        for name, gradient in gradients.items():
            g = gradient if adam.decoupled else gradient + decays[name] * weights[name]
            self._first[name] = one * self._first.get(name, 0) + (1 - one) * g
            self._second[name] = two * self._second.get(name, 0) + (1 - two) * g.square()
            squared = (self._second[name] / (1 - two**self._steps)).clamp_min(torch.finfo(g.dtype).tiny)  # √ at 0
            result[name] = self._first[name] / (1 - one**self._steps) / (squared.sqrt() + adam.eps)
            if adam.decoupled:
                result[name] = result[name] + decays[name] * weights[name]
        return result


def momentum_gain(momentum: float, steps: int, rule: StepRule | None = None) -> float:
    """Return the factor by which SGD's momentum lengthens an update over `steps` local steps with a constant gradient;
    divided by this factor, the update has a gradient's length. The factor is the mean of (1 - mˢ)/(1 - m) over s = 1 …
    `steps`, with m = `momentum`. Nesterov's momentum, kept gradients and the schedule in `rule` change the factor."""
    if rule is None:
        return sum((1 - momentum**s) / (1 - momentum) for s in range(1, steps + 1)) / steps
    total, gradient, velocity = 0.0, 0.0, 0.0
    for step in range(steps):
        gradient = 1 + (gradient if rule.kept else 0)
        velocity = momentum * velocity + gradient
        pace = rule.schedule[step] if rule.schedule else 1.0
        total += pace * (gradient + momentum * velocity if rule.nesterov else velocity)
    return total / steps


def reaches(momentum: float, steps: int, rule: StepRule | None = None) -> Tensor:
    """Return how far each local step's gradient has moved the weights at each later time: (step, step + 1) float64, in
    multiples of learning rate times gradient. Under plain SGD an entry is 0 or 1; with momentum, a gradient moves the
    weights further in later steps. Entry (i, j) is the effect of the gradient at step i, just before step j; the last
    column is the effect at the end of the round. `momentum` and `rule` are options of the client's SGD; `steps` is the
    number of local steps."""
    rule = rule or StepRule()
    moved = torch.zeros(steps, steps + 1, dtype=torch.float64)
    for first in range(steps):
        velocity = 0.0
        for step in range(first, steps):
            gradient = 1.0 if step == first or rule.kept else 0.0
            velocity = momentum * velocity + gradient
            way = gradient + momentum * velocity if rule.nesterov else velocity
            moved[first, step + 1] = moved[first, step] + way * (rule.schedule[step] if rule.schedule else 1.0)
    return moved


def _example_gradients(
    model: nn.Module, shared: Tensors | None, local: Tensors, inputs: Tensor, targets: Tensor, graph: bool
) -> dict[str, Tensor]:
    count, examples = inputs.shape[:2]
    repeated = (
        {name: value[:, None].expand(count, examples, *value.shape[1:]).flatten(0, 1) for name, value in local.items()}
        if shared is None
        else {}
    )
    flat = _mean_gradients(
        model, shared, repeated, inputs.flatten(0, 1)[:, None], targets.flatten(0, 1)[:, None], graph
    )
    return {name: value.unflatten(0, (count, examples)) for name, value in flat.items()}


def _mean_gradients(
    model: nn.Module, shared: Tensors | None, local: Tensors, inputs: Tensor, targets: Tensor, graph: bool
) -> dict[str, Tensor]:
    """Return the mean gradient of each group (a reading's examples in a step), name → (group, *shape). Weights are
    `shared`, name → (*shape), or else `local`, name → (group, *shape). `graph` True keeps autograd's graph."""
    if shared is not None:
        return group_gradients(model, shared, inputs, targets, differentiable=graph)
    leaves = {
        name: value if graph and value.requires_grad else value.detach().requires_grad_()
        for name, value in local.items()
    }
    try:
        with torch.enable_grad():
            if twice_under_vmap(model, {name: value[0] for name, value in leaves.items()}, inputs.flatten(0, 1)):
                gradients = vmap(grad(_loss), in_dims=(0, None, 0, 0))(leaves, model, inputs, targets)
            else:
                gradients = _one_by_one(leaves, model, inputs, targets, graph)
    except RuntimeError as error:
        if "saved tensor hooks" in str(error):  # the layers would be computed again with other weights
            raise NotApplicable(_CHECKPOINTED) from None
        raise
    return gradients if graph else {name: value.detach() for name, value in gradients.items()}


def _loss(weights: Tensors, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    logits = functional_call(model, dict(weights), (inputs.clone(),))  # a first layer may work in place
    return loss_of(model)(logits, targets)


def _one_by_one(weights: Tensors, model: nn.Module, inputs: Tensor, targets: Tensor, graph: bool) -> dict[str, Tensor]:
    """Return groups' mean gradients as `_mean_gradients` does, by plain autograd, one by one: slow, but right for every
    model. `graph` True keeps autograd's graph."""
    rows = []
    for row, (x, y) in enumerate(zip(inputs, targets, strict=True)):
        local = {name: value[row] for name, value in weights.items()}
        with torch.autograd.graph.disable_saved_tensors_hooks("saved tensor hooks"):
            loss = _loss(local, model, x, y)
        rows.append(
            torch.autograd.grad(
                loss, list(local.values()), create_graph=graph, allow_unused=True, materialize_grads=True
            )
        )
    return {name: torch.stack([row[n] for row in rows]) for n, name in enumerate(weights)}
