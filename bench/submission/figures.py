"""Contradictions inside a record: summary and readings' results must follow from the examples' scores.

An edited figure therefore contradicts other figures.  Only a new run shows whether the scores themselves are true
(`bench.submission.verify`)."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from bench.cell import AttackCell, TrainingCell
from bench.kinds.base import Kind
from bench.leaderboard.costs import UNDEFENDED
from bench.points import POINTS
from bench.record.equality import unequal
from bench.record.metrics import OVER_PRIOR_DB, PSNR_DB, named, of_kind
from bench.record.schema import AttackResult, Distortion, ExampleScore, PriorScore, Record, TrainingResult
from bench.registry.mixing import originals
from bench.sanitize import sanitize
from bench.scoring.metrics import PSNR_CAP_DB
from bench.scoring.reading import SNR_CAP_DB
from bench.scoring.summary import median, summarise

_NEAR = 1e-9  # relative and absolute: sums of the same numbers on another machine
_MOST = 3  # findings for a record
_CLUSTERED = 3  # the protocol from which shares count a reading's examples together, and tables have a margin


def findings(record: Record) -> list[str]:
    """Return the contradictions among a record's figures, as at most three lines of text; for example, a summary that
    does not follow from the examples' scores."""
    cell, lines = record.cell, []
    earlier = (record.protocol or 1) < _CLUSTERED
    if isinstance(cell, AttackCell) and record.attack is not None:
        if cell.after and not record.attack.readings and record.attack.summary is None:
            return []  # the earlier cells left no reading
        lines = [
            *_counts(record.attack, cell),
            *_undefended(record.attack, cell),
            *_chances(record.attack, cell, earlier),
            *_scores(record.attack, earlier),
        ]
        lines = lines or list(_summary(record.attack, earlier))  # columns need readings of one length
    elif isinstance(cell, TrainingCell) and record.training is not None:
        lines = list(_training(record.training, cell))
    return lines[:_MOST]


def consistent(result: AttackResult, *, earlier: bool = False) -> AttackResult:
    """Compute summary and distortion of an attack's `result` again from its scores, to compare with the submitted
    figures. Return the result with the computed figures. Figures that the scores do not determine are kept: the
    gallery's size, the chance levels, and the figures of prior-only baselines except their median PSNR. `earlier` True
    uses the rules before evaluation protocol 3."""
    stated = result.figures()
    examples = [example for reading in result.readings for example in reading.examples]
    names = dict.fromkeys(name for example in examples for name in example.priors_db or ())
    texts = result.data_kind.success.closeness != PSNR_DB.name  # examples do not hold their baselines' figures
    priors, unknown = (
        dict(stated.priors) if texts else {},
        PriorScore(asr=0.0, psnr_db_median=None, rmse_median=None, beaten=0.0),
    )
    for name in names:
        db = np.array([(example.priors_db or {}).get(name) for example in examples], np.float64)
        priors[name] = replace(stated.priors.get(name, unknown), psnr_db_median=median(db, -np.inf))
    summary = summarise(
        result.readings,
        identification_chance=stated.identification_chance,
        gallery=stated.gallery,
        priors=priors,
        over=named(result.data_kind.success.over),
        naming_chance=stated.naming_chance,
        independent=earlier,
    )
    if any(example.identified is None for example in examples):
        summary = replace(summary, identification=stated.identification)
    snr, cosine = (
        np.array([getattr(reading, name) for reading in result.readings], np.float64) for name in ("snr_db", "cosine")
    )
    distortion = Distortion(
        snr_db_median=_finite(np.median(snr)),
        snr_db_least=_finite(np.min(snr)),
        cosine_median=_finite(np.median(cosine)),
    )
    return replace(result, summary=summary, distortion=distortion)


def _counts(result: AttackResult, cell: AttackCell) -> Iterator[str]:
    numbers = [number for number, _ in result.numbered()]
    if cell.after:
        if numbers != sorted(set(numbers)) or not set(numbers) <= set(range(cell.readings)):
            yield f"its readings are {numbers[:8]}, its cell has {cell.readings}"
    elif numbers != list(range(cell.readings)):
        yield f"{len(result.readings)} readings, its cell has {cell.readings}"
    setting = cell.federated
    if cell.point not in POINTS:
        yield f"no such point: {sanitize(repr(cell.point), 40)}"
        return
    count = POINTS[cell.point].examples(batch=setting.batch, steps=setting.steps, senders=cell.senders)
    wrong = {len(reading.examples) for reading in result.readings} - {count}
    if wrong:
        yield f"{min(wrong)} examples in a reading, its cell makes {count}"


def _chances(result: AttackResult, cell: AttackCell, earlier: bool) -> Iterator[str]:
    """Yield a line for each wrong chance of a blind guess: guesses per reading divided by the number of candidates.
    Records with granted labels, or from protocols before 3 (`earlier` True), are not tested."""
    if earlier or cell.grants.labels or not result.readings:
        return
    stated, guesses = result.figures(), len(result.readings[0].examples)
    for name, value, hits, candidates in (
        ("identification_chance", stated.identification_chance, guesses * originals(cell), stated.gallery + 1),
        ("naming_chance", stated.naming_chance, guesses, cell.grants.gallery),
    ):
        expected = min(1.0, hits / candidates) if candidates else None
        if value is not None and (expected is None or not math.isclose(value, expected, rel_tol=1e-9)):
            yield f"{name} is {value:.4g}, {hits} guesses among {candidates} give {expected}"


def _undefended(result: AttackResult, cell: AttackCell) -> Iterator[str]:
    if cell.defense.name == UNDEFENDED:
        for row, reading in result.numbered():
            if reading.snr_db is not None and reading.snr_db < SNR_CAP_DB:
                yield f"reading {row}: its SNR is {reading.snr_db:.4g} dB, and no defense distorts nothing"


def _scores(result: AttackResult, earlier: bool) -> Iterator[str]:
    for row, reading in enumerate(result.readings):
        if reading.leaked != any(example.success for example in reading.examples):
            yield f"reading {row}: leaked is {reading.leaked}, its examples say otherwise"
        for number, example in enumerate(reading.examples):
            for field, stated, value in unequal("", example, _judged(example, result.data_kind, earlier), _NEAR):
                where = f"reading {row} example {number}: {field.removeprefix('.')}"
                yield f"{where} is {stated}, its figures give {value}"


def _judged(example: ExampleScore, kind: Kind, earlier: bool) -> ExampleScore:
    priors = [value for value in (example.priors_db or {}).values() if value is not None]
    best, psnr = max(priors, default=None), None
    if example.rmse is not None:
        psnr = -20 * math.log10(max(example.rmse, 10 ** (-PSNR_CAP_DB / 20)))
    over = None if example.psnr_db is None or best is None else example.psnr_db - best
    rule = kind.success
    figures = {metric.name: example.value(metric) for metric in of_kind(kind)}
    if rule.over == OVER_PRIOR_DB.name:
        figures[rule.over] = math.nan if over is None else over
    strict = rule.leaked_strictly(figures)
    if earlier and kind.columns:
        figures[rule.over] = math.nan
    return replace(
        example,
        psnr_db=psnr,
        prior_db=best,
        over_prior_db=over,
        success=bool(rule.leaked(figures)),
        strict=None if example.strict is None or strict is None else bool(strict),
    )


def _summary(result: AttackResult, earlier: bool) -> Iterator[str]:
    if result.summary is None:
        yield "has no summary"
        return
    follows = consistent(result, earlier=earlier)
    for name in ("summary", "distortion"):
        for field, stated, value in unequal(name, getattr(result, name), getattr(follows, name), _NEAR):
            yield f"{field} is {sanitize(stated, 40)}, its examples give {sanitize(value, 40)}"


def _training(result: TrainingResult, cell: TrainingCell) -> Iterator[str]:
    last = result.curve[-1][1] if result.curve else None
    spent = result.privacy.released()
    for name, stated, value in (
        ("accuracy", result.accuracy, 0.0 if result.diverged else last),
        ("epsilon", result.privacy.epsilon, spent and spent.epsilon),
    ):
        for field, _, _ in unequal(name, stated, value, _NEAR):
            yield f"{field} is {stated}, its curve or its figures for ε give {value}"
    if not 0 <= result.rounds <= cell.rounds:
        yield f"{result.rounds} rounds, its cell has {cell.rounds}"


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
