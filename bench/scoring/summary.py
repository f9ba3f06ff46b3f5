"""Summary of a cell's examples; failed examples count in every figure."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bench.record.metrics import METRICS, Metric
from bench.record.schema import ExampleScore, PriorScore, ReadingScore, Share, Summary
from bench.scoring.intervals import clustered_share, wilson


def summarise(
    readings: Sequence[ReadingScore],
    *,
    identification_chance: float | None,
    gallery: int,
    priors: Mapping[str, PriorScore],
    over: Metric,
    naming_chance: float | None = None,
    independent: bool = False,
) -> Summary:
    """Summarise the scores of an attack's readings (observed updates): shares of examples with intervals, medians,
    failures.

    - `readings`: scores of the readings and their examples.
    - `identification_chance`, `naming_chance`: shares of examples that blind guesses would identify or name; None if
      there are no candidates or strangers (no gallery).
    - `gallery`: number of strangers' examples for identification.
    - `priors`: scores of the prior-only baselines by name.
    - `over`: metric for the margin over the best prior-only guess. It tells the kind of data: only metrics of this kind
      get a median.
    - `independent`: True treats a reading's examples as independent, as records before protocol 3 did.

    The summary's `lower_bound` is True if the attack diverged or gave NaN on some examples: a better attack might
    reconstruct them, so the success rate (`asr`) is only a lower bound."""
    examples = [example for reading in readings for example in reading.examples]
    status = np.array([example.status for example in examples])
    failed = (status != "ok") & (status != "missing")
    identified = [example.identified for example in examples]
    strict = [example.strict for example in examples]
    named = [example.named for example in examples]
    groups = None if independent else [n for n, reading in enumerate(readings) for _ in reading.examples]
    beaten = float((_column(examples, over) > 0).mean()) if priors else None
    return Summary(
        readings=len(readings),
        examples=len(examples),
        asr=share([example.success for example in examples], groups),
        asr_strict=None if all(value is None for value in strict) else share(strict, groups),
        lower_bound=bool(failed.any()) or any(reading.status != "ok" for reading in readings),
        readings_leaked=share([any(example.success for example in reading.examples) for reading in readings]),
        identification=None if any(hit is None for hit in identified) else share(identified, groups),
        identification_chance=identification_chance,
        gallery=gallery,
        medians={
            metric.name: median(_column(examples, metric), metric.failed)
            for metric in METRICS
            if set(metric.kinds) & set(over.kinds)
        },
        label_accuracy=_label_accuracy([reading.label_accuracy for reading in readings]),
        evaluations_median=float(np.median([reading.evaluations or 0 for reading in readings])),
        outer_median=float(np.median([reading.outer or 0 for reading in readings])),
        diverged_share=float((status == "diverged").mean()),
        nan_share=float((status == "nan").mean()),
        missing_share=float((status == "missing").mean()),
        priors=dict(priors),
        prior_beaten=beaten,
        beats_prior=None if beaten is None else beaten > 0.5,
        naming=None if any(hit is None for hit in named) else share(named, groups),
        naming_chance=naming_chance,
    )


def _column(examples: Sequence[ExampleScore], metric: Metric) -> NDArray[np.float64]:
    return np.array([example.value(metric) for example in examples], np.float64)


def median(values: ArrayLike | Sequence[float | None], failed: float) -> float | None:
    """Return the median of `values`, with NaN (or None) counted as the number `failed`, such as -∞ for a metric whose
    high values are good. The result is None if all values are missing or the median is infinite."""
    numbers = np.asarray(values, np.float64)
    if np.isnan(numbers).all():
        return None
    value = float(np.median(np.where(np.isnan(numbers), failed, numbers)))
    return value if np.isfinite(value) else None


def share(hits: Sequence[bool | None], groups: Sequence[int] | None = None) -> Share:
    """Return the share of True in `hits` (outcome,) and its 95 % interval; None in `hits` counts as False. Outcomes
    with equal `groups` (outcome,) are dependent; None for `groups`: all are independent."""
    count = sum(map(bool, hits))
    low, high = wilson(count, len(hits)) if groups is None else clustered_share([bool(hit) for hit in hits], groups)
    return Share(value=count / len(hits), low=low, high=high)


def _label_accuracy(values: Sequence[float | None]) -> float | None:
    return None if all(value is None for value in values) else float(np.mean([value or 0.0 for value in values]))
