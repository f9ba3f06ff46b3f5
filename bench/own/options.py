"""Options of a training that make an update a combination of gradients: smoothing, weight decay, class weights."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.gradients import one_hot
from bench.own.replay import shown
from bench.rows import flattened
from bench.trip import Reading

_FITS = 1e-3  # largest distance to a combination, relative to the update
_BETTER = 5.0  # factor by which a combination must be nearer than a multiple of the replay
_SAME = 0.02  # relative differences below which coefficients count as equal
_MANY = 4096  # largest number of example gradients that are computed for class weights


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """Options of a training, from the coefficients of a combination.

    - `smoothing`: label smoothing, 0 to 1; 0 without.
    - `decay`: weight decay; 0 without.
    - `weights`: class → weight in the loss, relative to the least; empty where all are equal."""

    smoothing: float = 0.0
    decay: float = 0.0
    weights: dict[int, float]


def options(reading: Reading, observed: dict[str, Tensor], inputs: Tensor, labels: Tensor) -> str | None:
    """Return undeclared options of the client's training (label smoothing, weight decay, class weights, or several of
    them) that explain its gradient, with the remedy, as text; None if no option explains the gradient.

    - `reading`: the user's reading, which declares the training (model, weights, batch, loss).
    - `observed`: the gradient, name → (reading, *shape); all readings must have the same options.
    - `inputs` (reading, example, *shape), `labels` (reading, example): true examples."""
    if reading.stepwise or reading.description is not None or reading.senders > 1:
        return None
    update = flattened(observed, 1).double()
    targets = one_hot(labels, reading.classes, inputs.dtype)
    plain = flattened(shown(reading, inputs, targets), 1).double()
    least = min(_FITS, _fit(update, [plain])[1] / _BETTER)
    weights = flattened(reading.weights, 1).double().expand(len(inputs), -1)
    for whole, even, present in _parts(reading, inputs, targets, plain):
        for smoothed in ([], even):
            for decayed in ([], [weights]):
                if not smoothed and not decayed and len(whole) == 1:
                    continue  # a multiple of the replay is no option of the loss
                coefficients, far = _fit(update, [*whole, *smoothed, *decayed])
                if far <= least and (found := _read(coefficients, present, reading.classes, bool(decayed))):
                    return _text(found)
    return None


def _parts(
    reading: Reading, inputs: Tensor, targets: Tensor, plain: Tensor
) -> Iterator[tuple[list[Tensor], list[Tensor], dict[int, float]]]:
    """Yield the parts of a loss without class weights, then the parts with class weights, each as updates (reading,
    coordinate): parts by true label, parts by the label that smoothing adds, and present label → share of the examples.

    One part stands for all classes in the first case.  The second case is left out for one class or one example, and
    for so many classes that their gradients cost more than the check."""
    uniform = flattened(shown(reading, inputs, torch.full_like(targets, 1 / reading.classes)), 1).double()
    yield [plain], [uniform], {-1: 1.0}
    counts = targets.double().mean((0, 1))
    present = {int(label): float(counts[label]) for label in torch.nonzero(counts)[:, 0]}
    if len(present) < 2 or inputs.shape[1] < 2 or reading.classes * inputs.shape[0] * inputs.shape[1] > _MANY:
        return
    each = shown(reading.of([n for n in range(len(inputs)) for _ in range(inputs.shape[1])]), *_alone(inputs, targets))
    rows = flattened(each, 1).double().unflatten(0, inputs.shape[:2])
    true = [torch.einsum("re,rec->rc", targets[:, :, label].double(), rows) / inputs.shape[1] for label in present]
    every = [torch.full(targets.shape[:2], label) for label in range(reading.classes)]
    even = [flattened(shown(reading, inputs, one_hot(one, reading.classes, inputs.dtype)), 1).double() for one in every]
    yield true, even, present


def _read(coefficients: list[float], present: dict[int, float], classes: int, decayed: bool) -> _Options | None:
    """Return the options from which the coefficients of a combination follow; None if no options give these.

    - `coefficients`: of the parts by true label, then (none or all) by the label that smoothing adds, then (`decayed`)
      of the weights.
    - `present`: label → share of the examples, in the order of the coefficients; -1 for all labels together.

    A weighted mean of cross-entropies with smoothing s has (1 - s) w/m for the true label and s w/(m classes) for each
    label, where w is the label's weight and m the mean weight of the examples."""
    decay = coefficients[-1] if decayed else 0.0
    true, even = coefficients[: len(present)], coefficients[len(present) : len(coefficients) - decayed]
    if min(true) <= 0 or (decayed and decay <= 0) or (even and min(even) <= 0):
        return None
    smoothing = 0.0
    if even:
        times = 1 if -1 in present else classes
        smooth = [times * even[max(label, 0)] for label in present]
        shares = [s / (s + t) for s, t in zip(smooth, true, strict=True)]
        smoothing = sum(shares) / len(shares)
        if any(abs(share / smoothing - 1) > _SAME for share in shares):
            return None
    kept = sum(share * value for share, value in zip(present.values(), true, strict=True))
    if -1 in present:
        return _Options(smoothing=smoothing, decay=decay, weights={}) if abs(kept + smoothing - 1) < _SAME else None
    mean = sum(true) / len(true)
    if all(abs(value / mean - 1) < _SAME for value in true):
        return None
    if (even or decayed) and abs(kept + smoothing - 1) > _SAME:
        return None
    weights = dict(zip(range(classes), even, strict=True)) if even else dict(zip(present, true, strict=True))
    lightest = min(weights.values())
    return _Options(
        smoothing=smoothing, decay=decay, weights={label: value / lightest for label, value in weights.items()}
    )


def _text(found: _Options) -> str:
    """Say the options and their remedy."""
    causes, loss = [], []
    if found.weights:
        named = ", ".join(f"{label}: {value:.3g}" for label, value in found.weights.items())
        causes.append(f"the classes count differently ({named})")
        loss.append("weight=…")
    if found.smoothing:
        causes.append(f"label smoothing of {found.smoothing:.2g}")
        loss.append(f"label_smoothing={found.smoothing:.2g}")
    remedies = [f"declare loss=nn.CrossEntropyLoss({', '.join(loss)})"] if loss else []
    if found.decay:
        causes.append(f"weight decay of {found.decay:.2g} is in the gradient")
        remedies.append(f"take the decay off, or give before=, after= and weight_decay={found.decay:.2g}")
    return f"{' and '.join(causes)}: {'; '.join(remedies)}"


def _alone(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return each example as a batch of its own."""
    return inputs.flatten(0, 1)[:, None], targets.flatten(0, 1)[:, None]


def _fit(update: Tensor, parts: list[Tensor]) -> tuple[list[float], float]:
    """Return the coefficients of the least-squares combination of `parts` (reading, coordinate), equal in all readings,
    and its distance to `update`, relative to the update."""
    matrix, right = torch.stack([part.flatten() for part in parts], 1), update.flatten()
    found = torch.linalg.lstsq(matrix, right).solution
    far = (right - matrix @ found).norm() / right.norm().clamp_min(1e-300)
    return found.tolist(), float(far)
