"""The candidates most likely behind a reading."""

import math
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from bench.attacks.candidates import combination, steps
from bench.attacks.candidates.exchange import most_likely as exchanged
from bench.attacks.candidates.listed import alone, by_label, candidates
from bench.attacks.candidates.single import by_description, likelihoods
from bench.attacks.inverter.sketch import Sketch
from bench.attacks.objective.mismatch import by_round, mean_observation, observations, same_weights
from bench.attacks.objective.rescale import rescaled
from bench.gradients import group_gradients
from bench.rng import Key
from bench.trip import Budget, Reading, Tensors

VALUES = 1 << 16  # kept of a gradient; larger gradients are hashed, which loses the reading's zeros
LIST = 10  # candidates named for a single example, best first
_LEAST = 1e-6  # variance of a round without noise, relative to the noisiest round


def most_likely(reading: Reading, budget: Budget, key: Key) -> tuple[Tensor, Tensor]:
    """Name the examples behind each reading: pick the most likely candidates in the gallery (the granted list). Return
    two tensors (reading, candidate): positions of the picked candidates, as many as unknown examples, or the ten best
    for a single unknown example; and the score of every candidate in the gallery. `budget` limits the seconds of a
    search for a set; `key` is the attacker's key for random draws."""
    scores = _of_one(reading, key) if reading.unknown == 1 else _sets(reading, budget, key)
    return torch.stack([_best(reading, row, scores[row]) for row in range(len(reading))]), scores


def _best(reading: Reading, row: int, scores: Tensor) -> Tensor:
    assert reading.gallery_labels is not None
    if reading.unknown == 1:
        if reading.labels is not None:
            scores = scores.where(reading.gallery_labels == reading.labels[row], -torch.inf)
        return scores.topk(min(LIST, len(scores))).indices
    ranked, counts = by_label(reading, scores, None if reading.labels is None else reading.labels[row])
    return torch.cat([each[:count] for each, count in zip(ranked, counts, strict=True)])


def _of_one(reading: Reading, key: Key) -> Tensor:
    """Return the scores (reading, candidate) of the only unknown example: of several rounds of a training, the mean log
    likelihood."""
    if not reading.several_rounds:
        return _of_round(reading, key, 1.0)
    parts = [rescaled(each) for each in by_round(reading)]
    most = max(0.0 if each.description is None else each.description.noise.variance for each in parts)
    return torch.stack([_of_round(each, key, _unit(each, _LEAST * most)) for each in parts]).mean(0)


def _of_round(reading: Reading, key: Key, unit: float) -> Tensor:
    return unit * _of_steps(reading) if reading.stepwise else likelihoods(reading, key, unit)


def _unit(reading: Reading, least: float) -> float:
    """Return the factor from distances, in squared gradient units, to log likelihoods, for a single observation; noise
    has the variance `least` or more."""
    description = reading.description
    if description is None or least == 0:
        return 1.0
    observed, variance = observations(reading)[0], max(least, description.noise.variance)
    if description.log_density(observed, observed) is not None:
        return 1.0
    return math.sqrt(2 / variance) if description.noise.law == "laplace" else 1 / (2 * variance)


def _of_steps(reading: Reading) -> Tensor:
    """Return the scores (reading, candidate) of the only unknown example behind several local steps."""
    mismatch = by_description(reading)
    observed = observations(reading)
    rows = (_of_row(observed, row) for row in range(len(reading)))
    return torch.stack([steps.likelihoods(mismatch, seen, row) for row, seen in enumerate(rows)])


def _of_row(observed: Sequence[Tensors], row: int) -> list[dict[str, Tensor]]:
    return [{name: value[row : row + 1] for name, value in each.items()} for each in observed]


def _sets(reading: Reading, budget: Budget, key: Key) -> Tensor:
    until = math.inf if budget.seconds is None else time.monotonic() + budget.seconds
    observed = observations(reading)
    mean = mean_observation(observed)
    sketch = Sketch.of({name: tuple(value.shape[1:]) for name, value in mean.items()}, key, VALUES)
    values = sketch(mean).float().cpu()
    scores = _by_gradients(reading, sketch, values)
    description = reading.description
    if not same_weights(reading) or (description is not None and description.mixed):
        return scores
    mismatch = by_description(reading)
    for row, index in enumerate(reading.indices):
        seen = _of_row(observed, row)
        labels = None if reading.labels is None else reading.labels[row]
        draws = key.generator("exchange", index)
        if reading.stepwise:
            members = steps.most_likely(mismatch, seen, scores[row], labels, draws, until=until)
        else:
            members = exchanged(mismatch, seen, scores[row], labels, sketch, draws, until=until)
        scores[row, members] += 1 + scores[row].max()
    return scores


def _by_gradients(reading: Reading, sketch: Sketch, observed: Tensor) -> Tensor:
    weights = {name: value[0] for name, value in reading.weights.items()}
    chunks = alone(*candidates(reading))
    gradients = torch.cat([sketch(group_gradients(reading.model, weights, x, y)).float().cpu() for x, y in chunks])
    whole: combination.Basis | None = None  # for readings without zeros
    rows = []
    for row in observed:
        shown = row != 0
        if bool(shown.all()):
            basis = whole = whole or combination.Basis.of(gradients)
        else:
            basis = combination.Basis.of(gradients, shown)
        rows.append(combination.scores(basis, row, reading.examples))
    return torch.stack(rows)
