"""Check of a defense's description in every cell: applied to the true examples, the description must give the reading
(observed update). The contracts `description` and `noise` check the same on trial data, which a defense could
recognise."""

import torch

from bench.answer.victims import Truth
from bench.attacks.objective.distance import Distance
from bench.attacks.objective.mismatch import Mismatch, by_round, observations
from bench.attacks.objective.rescale import rescaled
from bench.trip import Reading

_ROUNDING = 1e-5  # relative to the reading's squared norm, in single precision
_ERRORS = 6.0  # standard errors for a mean square under the heaviest law, Laplace
_EXAMPLES = 512  # checked at most, in whole readings: each needs a gradient
_LAPLACE = 5.0  # variance of a squared Laplace draw, in squared variances


def explained(reading: Reading, truth: Truth) -> bool | None:
    """Return whether the defense's description, which `reading` holds for adaptive attackers, is right for the observed
    updates in `reading`. Applied to the true examples `truth`, the description must give these updates up to the stated
    noise.

    Differences smaller than this noise are accepted only if the stated noise is an upper bound. Returns None without a
    description, with randomness other than additive Gaussian or Laplace noise, and for a mean over clients with several
    local steps."""
    if reading.description is None or not reading.description.additive or reading.linked != "vector":
        return None
    if reading.senders > 1 and reading.steps > 1:
        return None
    if reading.descriptions:  # a description for each round
        reading = by_round(reading)[0]
    count = max(1, _EXAMPLES // reading.examples)
    if count < len(reading):
        reading, truth = reading.of(range(count)), truth.of(range(count))
    reading = rescaled(reading)
    description = reading.description
    assert description is not None
    observed, like = observations(reading), next(iter(reading.values.values()))
    if description.log_likelihood(observed[0], observed[0]) is not None:
        return None
    mismatch = Mismatch(reading=reading, distance=Distance(kind="l2"), unrolled=reading.steps > 1)
    targets = truth.probabilities(reading.classes, like.dtype)
    with torch.no_grad():
        squares = float(mismatch(observed, truth.inputs.to(like), targets, differentiable=False).mean())
    norms = float(Distance(kind="l2").squared_norm(observed[0]).mean())
    count = sum(value[0].numel() for value in observed[0].values())
    noise = description.noise
    stated = count * noise.variance
    if noise.variances is not None:
        stated = float(sum(v.expand(observed[0][n].shape[1:]).sum() for n, v in noise.variances.items()))
    if len(observed) == 1:
        stated /= len(reading.rounds)  # the observations' mean
    draws = count * len(reading) * len(observed)
    loose = _ERRORS * (_LAPLACE / draws) ** 0.5
    most = stated * (1 + loose) + _ROUNDING * norms
    least = 0.0 if noise.bound else stated * (1 - loose) - _ROUNDING * norms
    return bool(least <= squares <= most)
