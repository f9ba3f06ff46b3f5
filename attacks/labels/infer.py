"""Infer labels by a rule, or by simulated gradients of public examples if the rule fails on these."""

import torch
from scipy.optimize import nnls
from torch import Tensor

from bench.attacks.labels.head import Head, head, usual
from bench.attacks.labels.rules import labels_by_rule, listed, whole_counts
from bench.attacks.objective.distance import Distance
from bench.attacks.objective.mismatch import Mismatch, mean_observation, observations
from bench.gradients import one_hot
from bench.trip import Reading, Tensors

_SIMULATED = "labels: nearest to simulated gradients of public examples, as the rule for the last layer fails on these"
_PUBLIC = 4  # public batches per class
_RIGHT = 0.9  # share of their labels at which a rule counts as valid
_STEP = 64  # classes and batches in parallel


def infer_labels(reading: Reading, gradients: Tensors) -> Tensor:
    """Infer the labels of the examples behind each reading of a batch: (reading, example), ascending within a reading.

    - `reading`: the batch, with model and public examples.
    - `gradients`: the readings as mean gradients over local steps, name → (reading, *shape).

    Granted labels are returned unchanged. All labels are -1 if they cannot be inferred; `unreadable` gives the reason.
    """
    return labels_from(reading, gradients, described_classes(reading, gradients))


def labels_from(reading: Reading, gradients: Tensors, described: Tensors | None) -> Tensor:
    """Infer the labels of the examples behind each reading of the batch `reading`: (reading, example), ascending within
    a reading.

    - `gradients`: the readings as mean gradients over local steps, name → (reading, *shape).
    - `described`: simulated readings of public batches with known labels, from `described_classes`, compared with the
      gradients; None infers labels from the last layer's gradient by a rule.

    Granted labels are returned unchanged."""
    if reading.labels is not None:
        return reading.labels
    if described is None:
        return labels_by_rule(reading, gradients)
    last = head(reading)
    if last is None or not described:
        return torch.full((len(reading), reading.examples), -1)
    return _by_simulation(reading, last, gradients, described)


def unreadable(reading: Reading) -> str | None:
    """Return the reason why no label can be inferred from the batch `reading`; None if labels are granted or can be
    inferred."""
    if reading.labels is not None:
        return None
    last = head(reading)
    if last is None or (not last.linear and reading.description is not None):
        return "the model has no last linear layer to read labels off; grant labels, or take dlg"
    if reading.description is None and described_classes(reading, mean_observation(observations(reading))) == {}:
        return "no rule reads the labels of public examples off this model's last layer; grant labels, or take dlg"
    return None


def label_notes(reading: Reading, described: Tensors | None) -> tuple[str, ...]:
    """Return notes for the record on the label inference for the batch `reading`. The tuple has a note if labels of
    undefended readings were inferred from simulated readings in place of the label rule; otherwise it is empty.
    `described`: the simulated readings, the result of `described_classes`."""
    return (_SIMULATED,) if described and reading.description is None else ()


def described_classes(reading: Reading, gradients: Tensors) -> dict[str, Tensor] | None:
    """Simulate the readings of public batches, each with a single label: name → (class · batch, *shape). The simulation
    follows the defense's description, or has no defense if `reading` has no description.

    - `reading`: the attacked readings, with model, public examples and the defense's description.
    - `gradients`: the readings as mean gradients over local steps, name → (reading, *shape).

    Purpose: labels usually follow from the signs of the last layer's gradient. This rule fails after publicly known
    changes of the gradient, such as sign flips, or with operations behind the last layer. `labels_from` then compares
    the readings with these simulations.

    A test on other public batches decides. The result is empty if the simulations name wrong labels in this test. The
    result is None if

    - labels are granted,
    - the rule for the last layer's gradient gives the right labels of the simulations, or is exact for the model,
    - simulation is impossible: a description with several steps or senders, or random draws that depend on the reading.
    """
    last = head(reading)
    if reading.labels is not None or last is None:
        return None
    if reading.description is None:
        return None if last.logits and usual(reading) else _of_model(reading, last, gradients)
    if not last.linear or reading.steps > 1 or reading.description.senders > 1:
        return None
    described = _simulated(reading, gradients)
    nothing = _simulated(reading, {name: torch.zeros_like(value) for name, value in gradients.items()})
    if not all(torch.equal(value, nothing[name]) for name, value in described.items()):
        return None  # draws depend on this reading, not on public batches
    return None if _right(labels_by_rule(reading, described)) else described


def _of_model(reading: Reading, last: Head, gradients: Tensors) -> dict[str, Tensor] | None:
    """Simulate public batches of each class at the model, without a defense, as `described_classes` does."""
    simulated, others = (_simulated(reading, gradients, first) for first in (0, _PUBLIC * reading.examples))
    if last.linear and _right(labels_by_rule(reading, simulated)):
        return None
    return simulated if _right(_by_simulation(reading, last, others, simulated)) else {}


def _right(labels: Tensor) -> bool:
    """Whether the labels (class · batch, example), inferred from simulated batches of each class, are these classes."""
    classes = torch.arange(len(labels) // _PUBLIC).repeat_interleave(_PUBLIC)
    return float((labels == classes[:, None]).double().mean()) >= _RIGHT


def _simulated(reading: Reading, gradients: Tensors, first: int = 0) -> dict[str, Tensor]:
    """Simulate public batches of each class, from the public example number `first` on."""
    like = next(iter(gradients.values()))
    count = reading.classes * _PUBLIC
    at = (first + torch.arange(_PUBLIC * reading.examples)) % len(reading.public_inputs)
    inputs = reading.public_inputs[at].to(like).unflatten(0, (_PUBLIC, reading.examples))
    inputs = inputs.repeat(reading.classes, *[1] * (inputs.ndim - 1))
    labels = torch.arange(reading.classes).repeat_interleave(_PUBLIC)[:, None].expand(count, reading.examples)
    targets = one_hot(labels, reading.classes, like.dtype).to(like)
    mismatch = Mismatch(
        reading=reading, distance=Distance(kind="l2"), unrolled=reading.adam is not None or reading.rule is not None
    )
    parts = []
    with torch.no_grad():
        for x, y in zip(inputs.split(_STEP), targets.split(_STEP), strict=True):
            seen = {name: value[0].expand(len(x), *value.shape[1:]) for name, value in gradients.items()}
            parts.append(mismatch.simulated(seen, x, y))
    return {name: torch.cat([part[name] for part in parts]) for name in gradients}


def _by_simulation(reading: Reading, last: Head, gradients: Tensors, described: Tensors) -> Tensor:
    name = last.signal(gradients)  # a bias shows p - y, whatever the features
    of_class = described[name].flatten(1).double().unflatten(0, (reading.classes, _PUBLIC)).mean(1)
    rows = gradients[name].flatten(1).double()
    return torch.stack([_nearest(of_class, observed, reading.examples) for observed in rows])


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
