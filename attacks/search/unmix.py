"""Search example by example behind a batch's gradient, if the last layer shows each example's features."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from bench.attacks.first_layer.below import Below
from bench.attacks.labels.head import Head
from bench.attacks.last_layer.unmixed import Unmixed, unmixable, unmixed
from bench.attacks.objective.mismatch import observations
from bench.attacks.search.activations import Start
from bench.attacks.search.clients import joined
from bench.attacks.search.features import images_of
from bench.attacks.search.probable import mismatch_of
from bench.gradients import one_hot
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction

Search = Callable[[Reading, Budget, Start | None], Reconstruction]

_FIRST, _MOST = 0.3, 300  # evaluations of the search by features: share of all, and limit
_EXPLAINED = 1e-3  # of a zero gradient's distance: the joint search counts below
_NOTE = "the last layer's gradient shows each example's features: searched example by example"


def by_example(reading: Reading, budget: Budget, key: Key, search: Search) -> Reconstruction | None:
    """Attack a batch's gradient example by example: compute each example's inputs of the last layer (features) from
    this layer's gradient (`last_layer/unmixed.py`), then search the image with these features. A joint search by the
    whole gradient goes on from these images; its result counts if it explains the gradient. Return None if no reading
    can be divided. A reading that cannot be divided is searched as a whole.

    - `reading`: the batch of attacked readings.
    - `budget`: limits of the attack.
    - `key`: draws the coordinates for the division.
    - `search`: the joint search, as a function of a reading, a budget and the images to start from."""
    last = unmixable(reading) if reading.kind.spatial else None
    if last is None:
        return None
    gradient = observations(reading)[0]
    divided = [_divided(reading, last, gradient, row, key) for row in range(len(reading))]
    if not any(divided):
        return None
    parts = []
    for row, found in enumerate(divided):
        one = reading.of([row])
        parts.append(search(one, budget, None) if found is None else _searched(one, last, found, budget, search))
    return joined(parts)


def _divided(reading: Reading, last: Head, gradient: dict[str, Tensor], row: int, key: Key) -> Unmixed | None:
    found = unmixed(reading, last, gradient, row, key)
    if found is None or reading.labels is None:
        return found if found is not None and len(found.labels) == reading.examples else None
    left = torch.bincount(reading.labels[row], minlength=reading.classes)
    left -= torch.bincount(found.labels, minlength=reading.classes)
    return found if bool((left >= 0).all()) else None


def _searched(one: Reading, last: Head, found: Unmixed, budget: Budget, search: Search) -> Reconstruction:
    weights = {name: value[0] for name, value in one.weights.items()}
    below = Below(model=one.model, weights=weights, convolutions=(), layer=last.path, shape=one.shape)
    first = max(1, min(_MOST, round(_FIRST * budget.evaluations)))
    images, spent = images_of(below, found.features, one, first)
    labels, missing = found.labels, one.examples - len(found.labels)
    if missing:
        assert one.labels is not None
        left = one.labels[0].tolist()
        for label in labels.tolist():
            left.remove(label)
        labels = torch.cat([labels, torch.tensor(left)])
        images = torch.cat([images, one.public_mean.to(images).expand(missing, *one.shape)])
    order = labels.argsort(stable=True)
    labels, images = labels[order], images[order.to(images.device)]
    labelled = replace(one, labels=labels[None])
    start = Start(
        inputs=images.flatten(1)[None],
        found=torch.ones(1, dtype=torch.bool),
        evaluations=torch.zeros(1, dtype=torch.long),
    )
    rest = replace(budget, evaluations=max(1, budget.evaluations - int(spent.max())))
    result = search(labelled, rest, start)
    result = replace(result, evaluations=result.evaluations + spent.max(), notes=(*result.notes, _NOTE))
    mismatch, observed = mismatch_of(labelled), observations(labelled)
    if bool((result.loss <= _EXPLAINED * mismatch.distance.of_zero(observed[0]).to(result.loss)).all()):
        return result
    targets = one_hot(labels[None], one.classes, images.dtype).to(images.device)
    loss = mismatch(observed, images[None], targets, differentiable=False)
    return replace(result, inputs=images[None], labels=labels[None], loss=loss.to(result.loss), trajectory=None)
