"""Labels behind a reading: by rule, or where the defense breaks the rule, by its description."""

from collections.abc import Mapping

import torch
from scipy.optimize import nnls
from torch import Tensor

from bench.attacks.parts.distance import Distance
from bench.attacks.parts.label_rules import labels_by_rule, last_layer, listed, whole_counts
from bench.attacks.parts.objective import Mismatch
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
    if reading.labels is not None:
        return reading.labels
    path = last_layer(reading.model, reading.classes)
    if path is None or rule_holds(reading, gradients):
        return labels_by_rule(reading, gradients)
    prefix = f"{path}." if path else ""
    # a bias shows p - y, whatever the features
    names = [name for name in (f"{prefix}bias", f"{prefix}weight") if name in gradients][:1]
    return torch.stack([_nearest(reading, gradients, row, names) for row in range(len(reading))])


def rule_holds(reading: Reading, gradients: Tensors) -> bool:
    """Whether the rule names the classes of public batches behind the described defense, as it does without one.

    A public turn of the last layer's signs, say, hides no label from who knows it.
    """
    description = reading.description
    if description is None or reading.steps > 1 or description.senders > 1:
        return True
    classes = torch.arange(reading.classes).repeat_interleave(_PUBLIC)
    described = _described(reading, gradients, 0)
    nothing = _described(reading, {name: torch.zeros_like(value) for name, value in gradients.items()}, 0)
    if not all(torch.equal(value, nothing[name]) for name, value in described.items()):
        return True  # draws are read off this very reading: public batches say nothing of them
    named = labels_by_rule(reading, described)
    return bool((named == classes[:, None]).double().mean() >= _RIGHT)


def _described(reading: Reading, gradients: Tensors, row: int) -> dict[str, Tensor]:
    """What reading `row` would show of public batches, all of one class: name → (class and batch, *shape)."""
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
            seen = {name: value[row].expand(len(x), *value.shape[1:]) for name, value in gradients.items()}
            parts.append(mismatch.simulated(seen, x, y))
    return {name: torch.cat([part[name] for part in parts]) for name in gradients}


def _nearest(reading: Reading, gradients: Tensors, row: int, names: list[str]) -> Tensor:
    """The labels whose described last layer is nearest to the reading's, (example,): by coefficients of the classes."""
    described = _described(reading, gradients, row)
    of_class = torch.cat([described[name].flatten(1) for name in names], 1).double()
    of_class = of_class.unflatten(0, (reading.classes, _PUBLIC)).mean(1)
    observed = torch.cat([gradients[name][row].flatten() for name in names]).double()
    if reading.examples == 1:
        products = (of_class @ observed) / of_class.norm(dim=1).clamp_min(1e-30)
        best: Tensor = products.argmax()[None].cpu()
        return best
    # shares of the classes, whose sum is 1: without that p may be added to them
    weight = of_class.norm(dim=1).max()
    columns = torch.cat([of_class, weight.expand(len(of_class), 1)], 1).T
    shares = nnls(columns.cpu().numpy(), torch.cat([observed, weight[None]]).cpu().numpy())[0]
    return listed(whole_counts(reading.examples * torch.from_numpy(shares), reading.examples)[None])[0]
