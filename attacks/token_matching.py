"""Recover texts by their gradient's likelihood: a discrete search, also under noise and at low ranks."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from bench.attacks.base import Attack, Objective
from bench.attacks.candidates.steps import refused
from bench.attacks.labels.infer import infer_labels
from bench.attacks.objective.distance import Distance
from bench.attacks.objective.mismatch import Mismatch, by_likelihood, mean_observation, observations, same_weights
from bench.attacks.texts.embedding import token_embedding
from bench.attacks.texts.fit import Fit
from bench.attacks.texts.sketches import Sketches
from bench.attacks.texts.starts import Estimate, by_labels, jointly, label_lists
from bench.attacks.texts.steps import in_steps
from bench.parameters import parameter
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction

_NOTES = ("a step of the search counts as an evaluation; it also compares about a hundred changed texts",)


@dataclass(frozen=True, kw_only=True)
class TokenMatching(Attack):
    """Search for the texts whose simulated reading is nearest to the reading (the observed update). With a description
    of the defense, near means likely under the described noise; a language model from public texts (which token follows
    which) then adds the texts' own probability.

    The search starts at the public texts that explain the reading best. It exchanges, appends and removes tokens, moves
    tokens within a text and between texts, and keeps each improvement. Derivatives with respect to token vectors, and
    the rows of the token embedding's gradient, select the exchanges. No row space is needed: the search also works
    under noise, at low ranks, and for models without attention. There is no certificate.

    Labels are searched, too: the search takes the labels under which public texts explain the reading best, and tests
    lists that are nearly as likely. For several texts without a description, all texts and labels are searched
    together: the mean gradient's distance is quadratic, so two changes are compared at once (`texts/joint.py`). A
    reading shorter than means of public gradients was probably clipped: gradients then count with length 1, and the
    reading's scale is fitted.

    Several local steps: the update is first taken for a gradient at the given weights. Then the local steps are
    simulated for each changed batch, and the order of texts in the steps is searched, too (`texts/steps.py`).

    Departures from LAMP: the search is discrete only, by exact gradients of changed texts; the language model counts
    token pairs."""

    reference = "Balunović et al. 2022 (LAMP)"
    knowledge = ("plain", "adaptive")
    takes = ("text",)

    starts: int = parameter(4, "starts of the search", source="ours", low=1)

    def refuses(self, reading: Reading) -> str | None:
        if reading.linked != "vector":
            return "it compares whole gradients, and this reading's coordinates are not linked"
        if fault := refused(reading):
            return fault
        if not same_weights(reading):
            return "it does not handle observations under several weights"
        weights = {name: value[0] for name, value in reading.weights.items()}
        if token_embedding(reading.model, weights, reading.public_inputs[:1].long()) is None:
            return "its model has no embedding of tokens"
        return None

    def objective(self, reading: Reading) -> Objective:
        observed = mean_observation(observations(reading))
        return partial(_mismatch(reading), [observed], differentiable=False)

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        observed = mean_observation(observations(reading))
        labels, mismatch = infer_labels(reading, observed).clamp_min(0), _mismatch(reading)
        known = reading.labels is not None
        estimates, sketches = [], None
        for row, index in enumerate(reading.indices):
            alone = {name: value[row : row + 1] for name, value in observed.items()}
            draws = [key.generator("start", index, 0, start) for start in range(self.starts)]
            nothing = reading.public_mean.expand(reading.examples, *reading.shape)
            failed = Estimate(loss=np.nan, texts=nothing, labels=labels[row], steps=0, restarts=0)
            if not np.isfinite(zero := float(mismatch.distance.of_zero(alone))):
                estimates.append(failed)
                continue
            fit = Fit.of(replace(mismatch, unrolled=False), alone, labels[row])
            if reading.description is None and reading.examples > 1:
                sketches = sketches or Sketches.of(fit, key)
                estimate = jointly(fit, sketches, draws, budget.evaluations, labels_known=known)
            else:
                lists = [labels[row]] if known else label_lists(labels[row], reading.classes)
                estimate = by_labels(fit, lists, zero, draws, budget.evaluations)
            if reading.stepwise and np.isfinite(estimate.loss):
                whole, again = (
                    replace(fit, mismatch=mismatch),
                    [key.generator("steps", index, n) for n in range(self.starts)],
                )
                estimate = in_steps(whole, zero, estimate, again, budget.evaluations, known=known)
            estimates.append(estimate if np.isfinite(estimate.loss) else failed)
        steps = torch.tensor([each.steps for each in estimates])
        return Reconstruction(
            inputs=torch.stack([each.texts for each in estimates]).cpu().to(next(iter(observed.values())).dtype),
            labels=torch.stack([each.labels for each in estimates]).cpu(),
            loss=torch.tensor([each.loss for each in estimates], dtype=torch.float64),
            evaluations=steps,
            outer=steps,
            restarts=torch.tensor([each.restarts for each in estimates]),
            status=tuple("ok" if np.isfinite(each.loss) else "nan" for each in estimates),
            notes=_NOTES,
        )


def _mismatch(reading: Reading) -> Mismatch:
    distance = Distance(kind="cosine" if reading.description is None else "l2")
    return Mismatch(reading=reading, distance=by_likelihood(distance, reading), unrolled=reading.stepwise)
