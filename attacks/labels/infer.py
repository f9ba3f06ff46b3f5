"""Infer labels by a rule, or by the description of the defense if the defense breaks the rule."""

from collections.abc import Mapping

import torch
from scipy.optimize import nnls
from torch import Tensor

from bench.attacks.labels.rules import labels_by_rule, last_layer, listed, whole_counts
from bench.attacks.objective.distance import Distance
from bench.attacks.objective.mismatch import Mismatch
from bench.gradients import one_hot
from bench.trip import Reading

Tensors = Mapping[str, Tensor]
_PUBLIC = 4  # public batches per class
_RIGHT = 0.9  # share of their labels at which the rule counts as valid
_STEP = 64  # classes and batches in parallel


def infer_labels(reading: Reading, gradients: Tensors) -> Tensor:
    """Infer the labels behind each reading, (reading, example), ascending within a reading. `gradients` name →
    (reading, *shape): mean gradient over local steps. Granted labels are returned unchanged. All labels are -1 if the
    model has no last linear layer with an output per class."""
    return labels_from(reading, gradients, described_classes(reading, gradients))


def labels_from(reading: Reading, gradients: Tensors, described: Tensors | None) -> Tensor:
    """Infer the labels behind each reading, (reading, example), ascending within a reading. `gradients` name →
    (reading, *shape): mean gradient over local steps. `described` is the result of `described_classes`; None reads
    labels by rule. Granted labels are returned unchanged."""
    if reading.labels is not None:
        return reading.labels
    if described is None:
        return labels_by_rule(reading, gradients)
    path = last_layer(reading.model, reading.classes)
    prefix = f"{path}." if path else ""
    # a bias shows p - y, whatever the features
    name = next(name for name in (f"{prefix}bias", f"{prefix}weight") if name in gradients)
    of_class = described[name].flatten(1).double().unflatten(0, (reading.classes, _PUBLIC)).mean(1)
    rows = gradients[name].flatten(1).double()
    return torch.stack([_nearest(of_class, observed, reading.examples) for observed in rows])


def described_classes(reading: Reading, gradients: Tensors) -> dict[str, Tensor] | None:
    """Simulate the reading of a public batch for each class: name → (class · batch, *shape), or None. Each public batch
    has a single label. The simulations show labels even through a defense with publicly known changes, for example sign
    flips in the last layer. `gradients` name → (reading, *shape) are the readings. The result is None if

    - labels are granted,
    - the label rule reads the simulations correctly,
    - simulation is impossible: no description, several steps or senders, or random draws that depend on the reading."""
    description = reading.description
    if reading.labels is not None or last_layer(reading.model, reading.classes) is None:
        return None
    if description is None or reading.steps > 1 or description.senders > 1:
        return None
    classes = torch.arange(reading.classes).repeat_interleave(_PUBLIC)
    described = _described(reading, gradients)
    nothing = _described(reading, {name: torch.zeros_like(value) for name, value in gradients.items()})
    if not all(torch.equal(value, nothing[name]) for name, value in described.items()):
        return None  # draws depend on this reading, not on public batches
    right = (labels_by_rule(reading, described) == classes[:, None]).double().mean()
    return None if right >= _RIGHT else described


def _described(reading: Reading, gradients: Tensors) -> dict[str, Tensor]:
    like = next(iter(gradients.values()))
    count = reading.classes * _PUBLIC
    at = torch.arange(_PUBLIC * reading.examples) % len(reading.public_inputs)
    inputs = reading.public_inputs[at].to(like).unflatten(0, (_PUBLIC, reading.examples))
    inputs = inputs.repeat(reading.classes, *[1] * (inputs.ndim - 1))
    labels = torch.arange(reading.classes).repeat_interleave(_PUBLIC)[:, None].expand(count, reading.examples)
    targets = one_hot(labels, reading.classes, like.dtype).to(like)
    mismatch = Mismatch(reading=reading, distance=Distance(kind="l2"))
    parts = []
    with torch.no_grad():
        for x, y in zip(inputs.split(_STEP), targets.split(_STEP), strict=True):
            seen = {name: value[0].expand(len(x), *value.shape[1:]) for name, value in gradients.items()}
            parts.append(mismatch.simulated(seen, x, y))
    return {name: torch.cat([part[name] for part in parts]) for name in gradients}


def _nearest(of_class: Tensor, observed: Tensor, examples: int) -> Tensor:
    if examples == 1:
        products = (of_class @ observed) / of_class.norm(dim=1).clamp_min(1e-30)
        best: Tensor = products.argmax()[None].cpu()
        return best
    # class shares with sum 1; without the sum, p may be added to them
    weight = of_class.norm(dim=1).max()
    columns = torch.cat([of_class, weight.expand(len(of_class), 1)], 1).T
    shares = nnls(columns.cpu().numpy(), torch.cat([observed, weight[None]]).cpu().numpy())[0]
    return listed(whole_counts(examples * torch.from_numpy(shares), examples)[None])[0]
