"""Likelihood decoder: ranks the gallery's candidates for the first example of a reading (observed update) by
likelihood.

The decoder knows the batch's other examples. If all candidates are equally likely in advance, no attacker on the same
weights and data has a higher success rate than the decoder."""

import torch

from bench.answer.gallery import Gallery
from bench.answer.victims import Truth
from bench.attacks.objective.distance import Distance
from bench.attacks.objective.mismatch import Mismatch, by_likelihood, observations
from bench.attacks.objective.rescale import rescaled
from bench.gradients import one_hot
from bench.trip import Reading

EXAMPLES = 16  # per reading, at most: a candidate costs a gradient per example
_CHUNK = 64  # candidates computed at once


def has_likelihood(reading: Reading) -> bool:
    """Return whether the exact likelihood of a candidate example for `reading` (observed updates) can be computed. The
    only randomness must then be the defense's additive noise with a distribution that the attacker knows."""
    description = reading.description
    if description is None or reading.steps > 1 or reading.linked != "vector" or not description.additive:
        return False
    observed = {name: value[:1, 0] for name, value in reading.values.items()}
    own = description.log_density(observed, observed) is not None
    return own or (description.noise.variance > 0 and not description.noise.bound)


def decoder_places(reading: Reading, truth: Truth, gallery: Gallery) -> tuple[int, ...] | None:
    """Name the first true example of each reading (an observed update) in `reading` in the best possible way: rank the
    candidates of `gallery` by exact likelihood. Return the true example's rank, from 0 (best): (reading,). `truth` are
    the true examples; the other examples behind a reading count as known to the attacker.

    With granted labels, only candidates with the same label are ranked. Returns None for a single unknown example (the
    attack ranks the candidates itself), for more than `EXAMPLES` unknown examples, and without an exact likelihood."""
    if not 1 < reading.unknown <= EXAMPLES or not has_likelihood(reading):
        return None
    reading = rescaled(reading)
    mismatch = Mismatch(reading=reading, distance=by_likelihood(Distance(kind="l2"), reading), exact=True)
    observed, like = observations(reading), next(iter(reading.values.values()))
    targets = one_hot(gallery.labels, reading.classes, like.dtype)
    places = []
    for row in range(len(reading)):
        own = int(gallery.positions[row, 0])
        mates = truth.inputs[row, 1:].to(like)
        labels = one_hot(truth.labels[row, 1:], reading.classes, like.dtype)
        rivals = torch.ones(len(gallery.labels), dtype=torch.bool)
        if reading.labels is not None:
            rivals = gallery.labels == gallery.labels[own]
        rivals[gallery.positions[row, 1:]] = False  # the batch's other examples, which are known
        among = rivals.nonzero()[:, 0]
        scores = []
        for chosen in among.split(_CHUNK):
            x, y = gallery.inputs[chosen].to(like), targets[chosen]
            inputs = torch.cat([x[:, None], mates.expand(len(x), *mates.shape)], 1)
            probabilities = torch.cat([y[:, None], labels.expand(len(x), *labels.shape)], 1)
            seen = [{n: v[row].expand(len(x), *v.shape[1:]) for n, v in each.items()} for each in observed]
            with torch.no_grad():
                scores.append(mismatch(seen, inputs, probabilities, differentiable=False))
        score = torch.cat(scores)
        places.append(int((score < score[among == own]).sum()))
    return tuple(places)
