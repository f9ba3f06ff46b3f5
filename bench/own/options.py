"""Options of a training that make an update a combination of gradients: smoothing, weight decay, class weights."""

import torch
from torch import Tensor

from bench.gradients import one_hot
from bench.own.replay import shown
from bench.rows import flattened
from bench.trip import Reading

_FITS = 1e-3  # largest distance to a combination, relative to the update
_BETTER = 5.0  # factor by which a combination must be nearer than a multiple of the replay
_SAME = 0.02  # relative differences below which class weights count as equal


def options(reading: Reading, observed: dict[str, Tensor], inputs: Tensor, labels: Tensor) -> str | None:
    """Return undeclared options of the client's training (label smoothing, weight decay or class weights) that explain
    its gradient, with the remedy, as text; None if no option explains the gradient.

    - `reading`: the user's reading, which declares the training (model, weights, batch, loss).
    - `observed`: the gradient, name → (reading, *shape); all readings must have the same options.
    - `inputs` (reading, example, *shape), `labels` (reading, example): true examples."""
    if reading.stepwise or reading.description is not None or reading.senders > 1:
        return None
    targets = one_hot(labels, reading.classes, inputs.dtype)
    update, plain = flattened(observed, 1).double(), flattened(shown(reading, inputs, targets), 1).double()
    uniform = flattened(shown(reading, inputs, torch.full_like(targets, 1 / reading.classes)), 1).double()
    weights = flattened(reading.weights, 1).double().expand(len(inputs), -1)
    scaled = _fit(update, [plain])[1]
    (a, b), far = _fit(update, [plain, uniform])
    if far <= min(_FITS, scaled / _BETTER) and 0 < b < 1 and abs(a + b - 1) < _SAME:
        return f"label smoothing of {b:.2g}: declare loss=nn.CrossEntropyLoss(label_smoothing={b:.2g})"
    (a, c), far = _fit(update, [plain, weights])
    if far <= min(_FITS, scaled / _BETTER) and abs(a - 1) < _SAME and c > 0:
        return (
            f"weight decay of {c:.2g} is in the gradient: take it off, or give before=, after= and weight_decay={c:.2g}"
        )
    return _class_weights(reading, update, inputs, targets, min(_FITS, scaled / _BETTER))


def _class_weights(reading: Reading, update: Tensor, inputs: Tensor, targets: Tensor, least: float) -> str | None:
    """Return the class weights under which the examples' gradients add up to the update; None if there are none."""
    present = [int(label) for label in torch.nonzero(targets.sum((0, 1)))[:, 0]]
    if len(present) < 2 or inputs.shape[1] < 2:
        return None
    each = shown(reading.of([n for n in range(len(inputs)) for _ in range(inputs.shape[1])]), *_alone(inputs, targets))
    rows = flattened(each, 1).double().unflatten(0, inputs.shape[:2])
    parts = [torch.einsum("re,rec->rc", targets[:, :, label].double(), rows) / inputs.shape[1] for label in present]
    shares, far = _fit(update, parts)
    if far > least or min(shares) <= 0:
        return None
    mean = sum(shares) / len(shares)
    if all(abs(share / mean - 1) < _SAME for share in shares):
        return None
    named = ", ".join(f"{label}: {share / min(shares):.3g}" for label, share in zip(present, shares, strict=True))
    return f"the classes count differently ({named}): declare loss=nn.CrossEntropyLoss(weight=…)"


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
