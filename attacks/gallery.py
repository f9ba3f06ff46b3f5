"""Gallery: name the candidates behind a reading; a quick strong test, without a reconstruction."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.attacks.base import Attack, closed_form
from bench.attacks.candidates.naming import most_likely
from bench.attacks.candidates.steps import refused
from bench.attacks.first_layer.ratios import honest_size
from bench.attacks.first_layer.rows import rows_to_choose
from bench.attacks.objective.rescale import rescaled
from bench.errors import NotApplicable
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

    After several local steps, or with Adam, each set is trained on step by step, and its update is compared; the search
    also exchanges the steps of two candidates (`candidates/steps.py`).

    A server that chooses the weights assigns a row (neuron) of the first layer to each candidate: only this candidate
    opens the row (output above 0). The gradients of two candidates are then orthogonal, and a clip leaves each with the
    full norm. This is the worst case for a defense by clip and noise, and a proved ε must hold in it. Behind a Gaussian
    mechanism with sensitivity over noise μ, the share named among M candidates is ∫ φ(z - μ) Φ(z)^(M - 1) dz, with the
    standard normal density φ and distribution function Φ."""

    reference = "ours; the maximum likelihood among exchangeable candidates"
    knowledge = ("plain", "adaptive")
    iterative = False
    reading_seconds = 0.1
    most_examples = 32
    takes_mates = True
    takes_rounds = True
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
        if reading.several_rounds and reading.unknown > 1:
            return "it combines several rounds for a single unknown example; grant mates"
        return refused(reading)

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        reading = rescaled(reading)
        assert reading.gallery_inputs is not None and reading.gallery_labels is not None
        named, scores = most_likely(reading, budget, key)
        first = named[:, : reading.unknown]
        mean = reading.public_mean.expand(*first.shape, *reading.shape)
        return closed_form(reading, mean, reading.gallery_labels[first], loss=-scores.amax(1), named=named)
