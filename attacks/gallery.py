"""Gallery: name the candidates behind a reading; a quick strong test, without a reconstruction."""

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.attacks.base import Attack, closed_form
from bench.attacks.candidates import combination
from bench.attacks.candidates.exchange import most_likely
from bench.attacks.candidates.listed import alone, by_label, candidates
from bench.attacks.candidates.single import by_description, likelihoods
from bench.attacks.first_layer.ratios import honest_size
from bench.attacks.first_layer.rows import rows_to_choose
from bench.attacks.inverter.sketch import Sketch
from bench.attacks.objective.mismatch import mean_observation, observations, same_weights
from bench.attacks.objective.rescale import rescaled
from bench.errors import NotApplicable
from bench.gradients import group_gradients
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction, Server

_VALUES = 1 << 16  # kept of a gradient; larger gradients are hashed, which loses the reading's zeros
_NO_GALLERY = "it has no candidates; grant a gallery: grants = [[{ gallery = 1000 }]]"
_GAIN = 1e6  # of chosen weights: every gradient exceeds every clip
LIST = 10  # candidates named for a single example, best first


@dataclass(frozen=True, kw_only=True)
class Gallery(Attack):
    """Name the candidates in the gallery (the list of candidates granted to the attacker) that most likely caused a
    reading (an observed update). The attack reconstructs no input: the inputs returned are the public mean, and only
    recognition is scored.

    For a single unknown example, the attack takes the candidate with the greatest likelihood of the reading, by the
    description of the defense. Without a description, it takes the candidate whose gradient has the greatest cosine
    with the reading. With the grant `mates`, only the first example behind a reading is unknown. If all candidates are
    equally probable in advance, no attacker names them better than the likelihood.

    For several examples, the attack searches for the likeliest set of candidates: each step exchanges a candidate in
    the set for a candidate outside (`candidates/exchange.py`). The search has two starts. Each start holds the
    candidates with the largest coefficients in a non-negative combination of gradients, fitted to the reading's nonzero
    coordinates. The first start combines the candidates' gradients; the second combines these gradients after the
    defense.

    A server that chooses the weights assigns a row (neuron) of the first layer to each candidate: only this candidate
    opens the row (output above 0). The gradients of two candidates are then orthogonal, and a clip leaves each with the
    full norm. This is the worst case for a defense by clip and noise, and a proved ε must hold in it. Behind a Gaussian
    mechanism with sensitivity over noise μ, the share named among M candidates is ∫ φ(z - μ) Φ(z)^(M - 1) dz, with the
    standard normal density φ and distribution function Φ."""

    reference = "ours; the maximum likelihood among exchangeable candidates"
    knowledge = ("plain", "adaptive")
    iterative = False
    takes_mates = True
    takes = ("image", "table", "text")
    servers = ("listen", "weights")

    def craft(self, server: Server, key: Key) -> dict[str, Tensor]:
        rows = rows_to_choose(server)
        if server.gallery_inputs is None:
            raise NotApplicable(_NO_GALLERY)
        known, (units, count) = server.gallery_inputs.flatten(1).double(), rows.above.shape
        if len(known) > count:
            raise NotApplicable(f"it opens a row for each candidate: {len(known)} candidates, {count} rows")
        whole = torch.cat([known, torch.ones(len(known), 1).to(known)], 1)
        wanted = 2 * torch.eye(len(known), count, dtype=torch.float64) - 1  # outputs (candidate, row): own 1, others -1
        weight = torch.linalg.lstsq(whole, wanted, driver="gelsd").solution.T
        above = torch.from_numpy(key.generator("above").standard_normal((units, count)))
        return rows.chosen(server, weight[:, :-1], weight[:, -1], _GAIN * honest_size(rows) * above, known)

    def refuses(self, reading: Reading) -> str | None:
        if reading.gallery_inputs is None:
            return _NO_GALLERY
        if reading.linked != "vector":
            return "it compares whole vectors, and this reading's coordinates are not linked"
        if reading.steps > 1:
            return "it does not handle several local steps"
        return None

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        reading = rescaled(reading)
        assert reading.gallery_inputs is not None and reading.gallery_labels is not None
        scores = likelihoods(reading, key) if reading.unknown == 1 else _sets(reading, budget, key)
        named = torch.stack([_best(reading, row, scores[row]) for row in range(len(reading))])
        first = named[:, : reading.unknown]
        mean = reading.public_mean.expand(*first.shape, *reading.shape)
        return closed_form(reading, mean, reading.gallery_labels[first], loss=-scores.amax(1), named=named)


def _best(reading: Reading, row: int, scores: Tensor) -> Tensor:
    assert reading.gallery_labels is not None
    if reading.unknown == 1:
        if reading.labels is not None:
            scores = scores.where(reading.gallery_labels == reading.labels[row], -torch.inf)
        return scores.topk(min(LIST, len(scores))).indices
    ranked, counts = by_label(reading, scores, None if reading.labels is None else reading.labels[row])
    return torch.cat([each[:count] for each, count in zip(ranked, counts, strict=True)])


def _sets(reading: Reading, budget: Budget, key: Key) -> Tensor:
    until = math.inf if budget.seconds is None else time.monotonic() + budget.seconds
    observed = observations(reading)
    mean = mean_observation(observed)
    sketch = Sketch.of({name: tuple(value.shape[1:]) for name, value in mean.items()}, key, _VALUES)
    values = sketch(mean).float().cpu()
    scores = _by_gradients(reading, sketch, values)
    description = reading.description
    if not same_weights(reading) or (description is not None and description.mixed):
        return scores
    mismatch = by_description(reading)
    for row, index in enumerate(reading.indices):
        seen = [{name: value[row : row + 1] for name, value in each.items()} for each in observed]
        labels = None if reading.labels is None else reading.labels[row]
        draws = key.generator("exchange", index)
        members = most_likely(mismatch, seen, scores[row], labels, sketch, draws, until=until)
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
