"""The best decoder of a batch: which candidate stands where the truth does, to who knows the other examples?

Among exchangeable candidates no attacker does better than the likelihood, and knowing the others only helps: its share
bounds every attacker's on these weights and data.  The harness alone can ask, as it has the others.
"""

import torch

from bench.answer.gallery import Gallery
from bench.answer.victims import Truth
from bench.attacks.objective.distance import Distance
from bench.attacks.objective.mismatch import Mismatch, by_likelihood, observations
from bench.attacks.objective.rescale import rescaled
from bench.gradients import one_hot
from bench.trip import Reading

EXAMPLES = 16  # of a reading, at most: each candidate costs as many gradients
_CHUNK = 64  # candidates side by side


def has_likelihood(reading: Reading) -> bool:
    """Whether all that is random in the reading is a noise of known law."""
    description = reading.description
    if description is None or reading.steps > 1 or reading.linked != "vector" or not description.additive:
        return False
    observed = {name: value[:1, 0] for name, value in reading.values.items()}
    own = description.log_density(observed, observed) is not None
    return own or (description.noise.variance > 0 and not description.noise.bound)


def decoder_places(reading: Reading, truth: Truth, gallery: Gallery) -> tuple[int, ...] | None:
    """At which place, from 0, of the candidates by their likelihood each reading's first example stands; among those
    of its label where labels are granted.  None for single examples, whose attacker is the decoder itself, for larger
    readings than `EXAMPLES`, and without a likelihood."""
    if not 1 < reading.examples <= EXAMPLES or not has_likelihood(reading):
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
        rivals[gallery.positions[row, 1:]] = False  # they are known
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
