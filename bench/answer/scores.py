"""Scores of a reconstruction against the cell's true examples."""

from dataclasses import dataclass, replace
from functools import partial

from bench.answer.gallery import naming, of_first
from bench.answer.originals import against_originals
from bench.answer.truth import CellTruth
from bench.answer.values import Diagnosis
from bench.answer.victims import Truth, scored_once
from bench.cell import AttackCell
from bench.datasets.base import Data
from bench.record.metrics import LPIPS, ST_LPIPS
from bench.scoring.identify import Naming
from bench.scoring.learned import learned_for
from bench.scoring.prior_only import prior_only_baselines
from bench.scoring.score import Scores, score
from bench.trip import Reconstruction

GALLERY = 1000  # strangers for identification


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Scores of a cell's reconstruction, with the true examples against which it was scored. For a mixture of two
    examples (`mixup`), this is the example that leaked."""

    truth: Truth
    """True examples with which the reconstruction is compared; for a mixture, the example that leaked."""
    scores: Scores
    """Scores against `truth`."""


def score_truth(cell: AttackCell, truth: CellTruth, claim: Reconstruction, diagnosis: Diagnosis) -> Scored:
    """Return the scores of the reconstruction `claim` against the true examples `truth` of the cell (an experiment).
    `diagnosis` holds the checks of the readings (observed updates), with the ranks of granted candidates if the bench
    computed them by exact likelihood. Raises `PluginError` for a reconstruction with a wrong shape, and `ValueError`
    for true examples outside their range."""
    examples = scored_once(truth.examples.of(truth.rows), claim.inputs.shape[1])
    named = _naming(cell, truth, examples, claim, diagnosis)
    against = partial(_score, cell, truth.source.data, claim, named)
    used, scores = against_originals(cell, truth, examples, against)
    return Scored(truth=used, scores=scores)


def _naming(
    cell: AttackCell, truth: CellTruth, examples: Truth, claim: Reconstruction, diagnosis: Diagnosis
) -> Naming | None:
    if truth.gallery is None:
        return None
    named = naming(truth.gallery.of(truth.rows), examples, claim, labels=cell.grants.labels)
    if named is None or diagnosis.places is None:
        return named
    return replace(named, places=of_first(diagnosis.places, named.hits))


def _score(cell: AttackCell, data: Data, claim: Reconstruction, named: Naming | None, truth: Truth) -> Scores:
    """Score the reconstruction `claim` against `truth`. Prior-only baselines always know the true labels: they are
    equal for all attacks."""
    learned, absent = learned_for(data.kind)
    scores = score(
        truth.inputs.numpy(),
        truth.labels.numpy(),
        claim,
        kind=data.kind,
        groups=data.groups,
        priors=prior_only_baselines(data.public.floats(), data.public.labels, truth.labels.numpy(), data.kind.values),
        gallery=data.gallery.floats(slice(0, GALLERY)),
        learned=learned,
        named=named,
        gallery_labels=data.gallery.labels[:GALLERY] if cell.grants.labels else None,
    )
    return replace(scores, lpips_absent=absent.get(LPIPS.name), st_lpips_absent=absent.get(ST_LPIPS.name))
