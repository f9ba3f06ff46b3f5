"""Scores for a defense that mixes two examples (`mixup`): a single example's reading leaks if either is reconstructed.

A defense at stage `input` may mix an example with the batch's next example (`bench.registry.mixing`). Readings of whole
batches contain both examples anyway."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from bench.answer.truth import CellTruth
from bench.answer.victims import Truth, truth_at
from bench.cell import AttackCell
from bench.record.schema import ReadingScore
from bench.registry.mixing import originals
from bench.scoring.score import Scores

EITHER = "its defense mixes examples before their gradient: one leaks if either of its originals comes back"


def other_originals(cell: AttackCell, truth: CellTruth) -> tuple[Truth, ...]:
    """Return the second original example behind each reading (observed gradient) of a mixture of two examples, because
    a reconstruction of either original counts as a leak. `truth` holds the victims' batches of `cell` (an experiment).

    The tuple has a single item, with an example for each reading, if the defense mixes examples (`mixup`) and the
    attacker is at point type-2 (a single example's gradient); otherwise it is empty."""
    return tuple(truth_at(truth.victims, truth.point, n).of(truth.rows) for n in range(1, originals(cell)))


def against_originals(
    cell: AttackCell, truth: CellTruth, first: Truth, score: Callable[[Truth], Scores]
) -> tuple[Truth, Scores]:
    """Score a reconstruction under a defense that mixes two examples: either original counts as leaked. Each reading
    (observed gradient) is scored against the first original and against the second. Return (true examples, scores) with
    the better original of each reading: the leaked example, or if neither leaked, the example with the higher PSNR. A
    blind guess has two chances, so the identification chance doubles.

    - `cell`: the experiment.
    - `truth`: victims of the cell, from which the second examples follow.
    - `first`: the first example of each mixture.
    - `score`: function that scores the cell's reconstruction against given true examples.

    Without a mixture, the result is `first` with its scores."""
    scores = score(first)
    used = first
    for other in other_originals(cell, truth):
        pairs = zip(scores.readings, score(other).readings, strict=True)
        used = first.or_else(other, torch.tensor([_rank(b) > _rank(a) for a, b in pairs]))
        chance = scores.summary.identification_chance
        scores = score(used)
        doubled = None if chance is None else min(1.0, 2 * chance)
        scores = replace(scores, summary=replace(scores.summary, identification_chance=doubled))
    return used, scores


def _rank(reading: ReadingScore) -> tuple[bool, float]:
    (example,) = reading.examples
    return example.success, -math.inf if example.psnr_db is None else example.psnr_db
