"""A record's figures, computed from the true examples and a `Reconstruction`.

The order is fixed: match once, measure all metrics on this matching, decide which examples leaked, summarise.  A
missing example, and an example with NaN, keep their place and count as not leaked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bench.datasets.base import Group
from bench.kinds.base import Floats, Kind
from bench.record.metrics import PSNR_DB, RMSE
from bench.record.metrics import named as metric_named
from bench.record.schema import ExampleScore, PriorScore, ReadingScore, Summary
from bench.scoring.assign import assign, in_order
from bench.scoring.identify import Naming, identify
from bench.scoring.metrics import measured
from bench.scoring.summary import median, summarise
from bench.scoring.weights import Learned
from bench.trip import Reconstruction

Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Success of an attack: metrics for each reading (observed update) and example, and a summary with the success
    rate. Returned by `score`."""

    readings: tuple[ReadingScore, ...]
    """Scores of each reading (observed update) and its examples."""
    summary: Summary
    """Figures over all examples."""
    order: NDArray[np.int64]
    """(reading, example): number of the reconstructed example that is matched to each true example; -1 if missing."""
    lpips_absent: str | None = None
    """Reason for a missing LPIPS; None if LPIPS was computed."""
    st_lpips_absent: str | None = None
    """Reason for a missing ST-LPIPS; None if ST-LPIPS was computed."""
    priors_from: str = "the public split"
    """Name of the data behind the prior-only baselines."""
    doubt: str | None = None
    """Reason to distrust the figures, such as a truth that does not give the user's reading; None: no reason."""


def score(
    truth_inputs: ArrayLike,
    truth_labels: ArrayLike,
    reconstruction: Reconstruction,
    *,
    kind: Kind,
    groups: Sequence[Group] = (),
    priors: Mapping[str, ArrayLike],
    gallery: ArrayLike | None,
    learned: Mapping[str, Learned] | None = None,
    named: Naming | None = None,
    gallery_labels: ArrayLike | None = None,
) -> Scores:
    """Score a reconstruction: match reconstructed with true examples, measure every pair, and decide which examples
    leaked.

    - `truth_inputs` (reading, example, *shape), `truth_labels` (reading, example): the true examples.
    - `reconstruction`: the attack's result.
    - `kind`: the kind of data, with metrics and success rule.
    - `groups`: a table's groups of columns; empty for other kinds.
    - `priors`: prior-only baselines (guesses without the gradient), name → (reading, example, *shape).
    - `gallery` (example, *shape): strangers. A true example is identified if no stranger is nearer to the
      reconstruction; None: no identification.
    - `gallery_labels` (example,): the gallery's labels if labels were granted, to state the chance within a class;
      otherwise None.
    - `learned`: learned metrics (by a trained network), by name; None: no learned metric.
    - `named`: whether the attack picked the true examples among granted candidates; None without the grant.

    Raises `PluginError` for a reconstruction with another shape; `ValueError` for a truth outside its range, for no
    readings (observed updates), or for a table without groups."""
    truth, labels = kind.values.checked(truth_inputs), np.asarray(truth_labels, np.int64)
    if not truth.size:
        raise ValueError(f"expected readings with examples to score, got {truth.shape}")
    if kind.columns and not groups:
        raise ValueError(f"{kind.article} is scored by its groups of columns, got none")
    guess = reconstruction.inputs.detach().cpu().double().numpy()
    order = assign(truth, guess, kind.values)
    matched = in_order(guess, order)
    # a single bad value makes its example NaN: clipping would turn infinity into a valid 1
    matched[~np.isfinite(matched).reshape(*order.shape, -1).all(axis=-1)] = np.nan
    columns: Columns = dict(measured(truth, matched, kind, groups))
    columns |= {name: metric(truth, matched) for name, metric in (learned or {}).items()}

    prior_columns = {
        name: measured(truth, in_order(prior, assign(truth, prior, kind.values)), kind, groups)
        for name, prior in priors.items()
    }
    rule = kind.success
    best = np.full(order.shape, np.nan)
    for prior in prior_columns.values():
        best = np.fmax(best, prior[rule.closeness])
    if rule.closeness == PSNR_DB.name:
        columns["prior_db"] = best
    columns[rule.over] = columns[rule.closeness] - best  # NaN for an example without a prior, which needs no margin
    columns["success"] = rule.leaked(columns)
    strict = rule.leaked_strictly(columns)
    if strict is not None:
        columns["strict"] = strict
    identification = None
    if gallery is not None:
        known = None if gallery_labels is None else (labels, gallery_labels)
        identification = identify(truth, matched, gallery, kind.values, known)
    if identification is not None:
        columns["identified"] = identification.hits
    if named is not None:
        columns["named"] = named.hits
        if named.places is not None:
            columns["place"] = named.places
    columns["status"] = _status(reconstruction.status, order, matched)
    columns["label"], columns["matched"] = labels, np.where(order < 0, np.nan, order)
    readings = _readings(columns, prior_columns, labels, reconstruction)
    summary = summarise(
        readings,
        identification_chance=identification.chance if identification else None,
        gallery=identification.gallery if identification else 0,
        naming_chance=named.chance if named else None,
        priors={name: _prior(columns, prior, kind) for name, prior in prior_columns.items()},
        over=metric_named(rule.over),
    )
    return Scores(readings=readings, summary=summary, order=order)


def _prior(columns: Columns, prior: Mapping[str, Floats], kind: Kind) -> PriorScore:
    rule = kind.success
    medians = (
        median(prior[metric.name], metric.failed) if metric.name in prior else None for metric in (PSNR_DB, RMSE)
    )
    psnr, rmse = medians
    return PriorScore(
        asr=float(rule.reached(prior).mean()),
        psnr_db_median=psnr,
        rmse_median=rmse,
        beaten=float((columns[rule.closeness] > prior[rule.closeness]).mean()),
    )


def _status(readings: Sequence[str], order: NDArray[np.int64], guess: Floats) -> NDArray[Any]:
    """Return the status of each example: `missing`, `nan`, or the attack's status for the reading in `readings`.
    `order` is the result of `assign`, and `guess` are the reconstructed examples in this order."""
    status = np.array(readings, dtype=object)[:, None].repeat(order.shape[1], axis=1)
    status[np.isnan(guess).reshape(*order.shape, -1).any(axis=-1)] = "nan"
    status[order < 0] = "missing"
    return status


def _readings(
    columns: Columns,
    priors: Mapping[str, Mapping[str, Floats]],
    labels: NDArray[np.int64],
    reconstruction: Reconstruction,
) -> tuple[ReadingScore, ...]:
    claimed = reconstruction.labels.detach().cpu().numpy()
    accuracy = _label_accuracy(labels, claimed)
    loss = reconstruction.loss.detach().cpu().double().numpy()
    certain = None if reconstruction.certificate is None else reconstruction.certificate.cpu().double().numpy()
    readings = []
    for row in range(len(labels)):
        examples = tuple(
            ExampleScore(
                **{name: plain(values[row, n]) for name, values in columns.items() if name not in ("matched", "place")},
                place=_place(columns["place"][row, n]) if "place" in columns else None,
                matched=None if np.isnan(columns["matched"][row, n]) else int(columns["matched"][row, n]),
                priors_db={
                    name: plain(prior[PSNR_DB.name][row, n]) for name, prior in priors.items() if PSNR_DB.name in prior
                },
            )
            for n in range(labels.shape[1])
        )
        readings.append(
            ReadingScore(
                status=reconstruction.status[row],
                examples=examples,
                leaked=any(e.success for e in examples),
                labels=tuple(int(label) for label in claimed[row]),
                label_accuracy=plain(accuracy[row]),
                loss=plain(loss[row]),
                evaluations=int(reconstruction.evaluations[row]),
                outer=int(reconstruction.outer[row]),
                restarts=int(reconstruction.restarts[row]),
                certificate=None if certain is None else plain(certain[row]),
            )
        )
    return tuple(readings)


def _place(value: np.floating[Any]) -> int | None:
    return None if value < 0 else int(value)


def _label_accuracy(labels: NDArray[np.int64], claimed: NDArray[Any]) -> Floats:
    """Return the share of right labels `claimed` in each reading, as multisets; NaN for an attack without labels."""
    classes = np.arange(max(labels.max(), claimed.max()) + 1)
    true = (labels[..., None] == classes).sum(axis=1)
    named = (claimed[..., None] == classes).sum(axis=1)
    share = np.minimum(true, named).sum(axis=1) / labels.shape[1]
    return np.where((claimed >= 0).any(axis=1), share, np.nan)


def plain(value: Any) -> Any:
    """Convert a NumPy scalar `value` to a plain Python value for a record's JSON; NaN and infinity become None."""
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not np.isfinite(value) else value
