"""Labels behind a reading: by rule, or where the defense breaks the rule, by its description."""

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
_PUBLIC = 4  # public batches that stand for each class
_RIGHT = 0.9  # of their labels: the rule holds
_STEP = 64  # classes and batches side by side


def infer_labels(reading: Reading, gradients: Tensors) -> Tensor:
    """The labels behind each reading, (reading, example), in ascending order within a reading.

    `gradients` name → (reading, *shape), in gradient units.  Granted labels are returned as they are.  -1
    everywhere where the last linear layer has not `classes` outputs, or there is none.
    """
    return labels_from(reading, gradients, described_classes(reading, gradients))


def labels_from(reading: Reading, gradients: Tensors, described: Tensors | None) -> Tensor:
    """The same, given `described_classes` of the reading."""
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
    """What public batches of each class show behind the described defense, name → (class and batch, *shape); None where
    labels are granted, or the rule holds there as it does without a defense.

    A public turn of the last layer's signs, say, hides no label from who knows it.
    """
    description = reading.description
    if reading.labels is not None or last_layer(reading.model, reading.classes) is None:
        return None
    if description is None or reading.steps > 1 or description.senders > 1:
        return None
    classes = torch.arange(reading.classes).repeat_interleave(_PUBLIC)
    described = _described(reading, gradients)
    nothing = _described(reading, {name: torch.zeros_like(value) for name, value in gradients.items()})
    if not all(torch.equal(value, nothing[name]) for name, value in described.items()):
        return None  # draws are read off this very reading: public batches say nothing of them
    right = (labels_by_rule(reading, described) == classes[:, None]).double().mean()
    return None if right >= _RIGHT else described


def _described(reading: Reading, gradients: Tensors) -> dict[str, Tensor]:
    """What the first reading would show of public batches, all of one class: name → (class and batch, *shape)."""
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
    """The labels, (example,), whose gradients `of_class`, (class, value), are nearest to `observed`, (value,)."""
    if examples == 1:
        products = (of_class @ observed) / of_class.norm(dim=1).clamp_min(1e-30)
        best: Tensor = products.argmax()[None].cpu()
        return best
    # shares of the classes, whose sum is 1: without that p may be added to them
    weight = of_class.norm(dim=1).max()
    columns = torch.cat([of_class, weight.expand(len(of_class), 1)], 1).T
    shares = nnls(columns.cpu().numpy(), torch.cat([observed, weight[None]]).cpu().numpy())[0]
    return listed(whole_counts(examples * torch.from_numpy(shares), examples)[None])[0]
