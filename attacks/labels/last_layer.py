"""The last linear layer, for label inference: its observed gradient, and its inputs (features) on public examples.

The gradient of the cross entropy at the last layer is Σ (p - y)[h, 1]ᵀ over examples, with probabilities p, one-hot
labels y and features h. The gradient is known; public examples per class give the features' expectation."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bench.attacks.labels.head import last_layer
from bench.attacks.objective.local import reaches
from bench.attacks.objective.repeats import distinct_examples
from bench.trip import Reading, Tensors

PUBLIC = 512  # public examples for the features


@dataclass(frozen=True, slots=True, kw_only=True)
class LastLayer:
    """All data for label inference from a model's last layer, for a single reading (observed update): weights, observed
    gradient, and mean features (inputs of the layer) of public examples. Tensors are in float64 on the CPU."""

    weight: Tensor
    """Weight at the start of the round (class, feature)."""
    bias: Tensor
    """Bias at the start of the round (class,)."""
    d_weight: Tensor
    """Gradient by the weight (class, feature): the sum of the local steps' mean gradients."""
    d_bias: Tensor
    """Gradient by the bias (class,): the sum of the local steps' mean gradients."""
    kept: Tensor
    """Mask of the coordinates sent (class, feature + 1), bias last."""
    means: Tensor
    """Mean feature of public examples per local step and class (step, class, feature)."""
    spread: float
    """Variance of public examples' features around their class mean, averaged over features."""
    batches: tuple[int, ...]
    """Number of examples in each local step (step,)."""
    rate: float
    """η, the local learning rate."""
    client_examples: int | None = None
    """Number of distinct examples, all visited before any repeats; None if all are distinct."""
    reach: Tensor | None = None
    """Distance that each local step's gradient has moved the weights before a later step, in multiples of learning rate
    times gradient (step, step + 1), the last column at the end of the round; None: 1 from the next step on (SGD without
    momentum)."""

    @property
    def distinct(self) -> int:
        """Number of distinct examples that the client uses in the round. It is smaller than `examples` if the client
        passes over its data several times."""
        return self.examples if self.client_examples is None else min(self.examples, self.client_examples)

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.bias)

    @property
    def steps(self) -> int:
        """Number of local steps."""
        return len(self.batches)

    @property
    def examples(self) -> int:
        """Number of examples over all local steps: the length of a label sequence. An example that the client uses
        several times counts at each use."""
        return sum(self.batches)

    @property
    def step_of(self) -> Tensor:
        """Number (from 0) of the local step in which each example is used, (example,); the last axis of label sequences
        has the same order."""
        return torch.repeat_interleave(torch.arange(self.steps), torch.tensor(self.batches))

    @property
    def whole(self) -> bool:
        """True if the client sent the last layer's gradient completely, so that its full likelihood can be computed;
        False if a defense set coordinates to zero. A missing bias, and features with zero gradient in all classes, do
        not count."""
        return bool(self.kept[:, :-1].all()) and self.kept[:, -1].unique().numel() == 1

    @property
    def noise(self) -> float:
        """Estimated variance of the noise on a coordinate of the weight gradient; 0 if no column of this gradient was
        sent completely. Probabilities minus one-hot labels sum to 0 over classes. So without noise each column sums to
        0, and the squared sums estimate the variance."""
        columns = self.d_weight[:, self.kept[:, :-1].all(0)]
        if self.classes < 2 or not columns.numel():
            return 0.0
        return float(columns.sum(0).square().mean()) / self.classes

    @property
    def bias_unit(self) -> float:
        """Weight of squared errors at the bias gradient, relative to squared errors at the weight gradient: the mean
        over classes of ‖h‖², with the class's mean feature h. Scores of label sequences add both errors."""
        return float(self.means[0].square().sum(-1).mean())


def last_layers(reading: Reading, observed: Tensors) -> list[LastLayer] | None:
    """Collect the data for label inference from a model's last layer: a `LastLayer` for each reading (observed update)
    in a batch.

    - `reading`: the batch, with model and public examples.
    - `observed`: the readings as mean gradients over all local steps, name → (reading, *shape).

    Return None unless the model ends in a linear layer with bias and an output per class, `observed` has the gradients
    of weight and bias, and the layer's input is a vector per example.

    Features at local step s are computed at the weights w_0 - s η · observed, with the start w_0 and the learning rate
    η: a straight line approximates local training. An aggregate of several senders counts as one step."""
    path = last_layer(reading)
    if path is None:
        return None
    names = (f"{path}." if path else "") + "weight", (f"{path}." if path else "") + "bias"
    if any(name not in observed for name in names):
        return None
    steps = reading.steps if reading.senders == 1 else 1
    inputs = reading.public_inputs[:PUBLIC] if len(reading.public_inputs) else reading.public_mean[None]
    start = {name: value[0] for name, value in reading.weights.items()}
    inputs = inputs.to(next(iter(start.values())))
    first = features(reading.model, start, path, inputs)
    if first is None:
        return None
    layers = []
    reach = reaches(reading.momentum, steps, reading.rule if reading.senders == 1 else None)
    for row in range(len(reading)):
        moved = [first]
        for step in range(1, steps):
            way = reading.rate * float(reach[:, step].sum())
            now = {name: value - way * observed[name][row] for name, value in start.items()}
            here = features(reading.model, now, path, inputs)
            assert here is not None
            moved.append(here)
        layers.append(_of(reading, observed, row, names, torch.stack(moved), reach))
    return layers


def features(model: nn.Module, weights: Tensors, path: str, inputs: Tensor) -> Tensor | None:
    """Compute the inputs of a layer (features): (example, feature) in float64. Return None if the layer's inputs are
    not a vector per example, or if the layer's outputs are not the model's.

    - `weights`: the model's weights, name → (*shape).
    - `path`: name of the layer in the model.
    - `inputs` (example, *shape): the model's inputs."""
    taken: list[tuple[Tensor, Tensor]] = []
    handle = model.get_submodule(path).register_forward_hook(
        lambda _, arguments, out: taken.append((arguments[0].detach(), out.detach()))
    )
    try:
        with torch.no_grad():
            logits = functional_call(model, dict(weights), (inputs.clone(),))  # a layer may work in place
    finally:
        handle.remove()
    if len(taken) != 1 or taken[0][0].dim() != 2 or not torch.equal(taken[0][1], logits):
        return None
    return taken[0][0].double().cpu()


def _of(
    reading: Reading, observed: Tensors, row: int, names: tuple[str, str], moved: Tensor, reach: Tensor
) -> LastLayer:
    steps = len(reach)
    weight = reading.weights[names[0]][0].double().cpu()
    sent = observed[names[0]][row].double().cpu() * steps
    zeros = torch.zeros(len(weight), dtype=torch.float64)
    biased = names[1] in observed
    bias = reading.weights[names[1]][0].double().cpu() if biased else zeros
    sent_bias = observed[names[1]][row].double().cpu() * steps if biased else zeros
    means, spread = _class_means(moved, reading.public_labels[: moved.shape[1]], reading.classes)
    return LastLayer(
        weight=weight,
        bias=bias,
        d_weight=sent,
        d_bias=sent_bias,
        kept=_kept(sent, sent_bias),
        means=means,
        spread=spread,
        batches=reading.batches if reading.senders == 1 else (reading.examples,),
        rate=reading.rate * (1.0 if reading.rule is None else reading.rule.factors.get(names[0], 1.0)),
        client_examples=distinct_examples(reading),
        reach=reach if reading.momentum or reading.rule is not None else None,
    )


def _kept(sent: Tensor, sent_bias: Tensor) -> Tensor:
    """Return the mask of nonzero coordinates in the weight's gradient `sent` and the bias's `sent_bias`. A zero column
    counts as sent (a dead feature) if all other columns were sent."""
    kept = sent != 0
    dead = ~kept.any(0)
    if bool((kept | dead).all()):
        kept = kept | dead
    return torch.cat([kept, (sent_bias != 0)[:, None]], 1)


def _class_means(moved: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, float]:
    overall = moved.mean(1, keepdim=True)
    means = overall.expand(-1, classes, -1).clone()
    for label in range(classes):
        if len(labels) == moved.shape[1] and bool((labels == label).any()):
            means[:, label] = moved[:, labels == label].mean(1)
    own = means[0, labels] if len(labels) == moved.shape[1] and bool((labels >= 0).all()) else overall[0]
    return means, float((moved[0] - own).square().mean())
