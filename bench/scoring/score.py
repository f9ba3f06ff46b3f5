"""Scoring: the truth and a Reconstruction in, figures for the record out.

The order is fixed: pair once, measure everything on that pairing, judge, summarise.  An example that is
missing or not finite keeps its place and counts as not leaked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bench.datasets.base import Group
from bench.record.metrics import LPIPS, OVER_PRIOR_DB, PSNR_DB, RMSE, DataKind
from bench.record.schema import ExampleScore, PriorScore, ReadingScore, Summary
from bench.scoring import success
from bench.scoring.assign import assign, in_order
from bench.scoring.identify import Naming, identify
from bench.scoring.lpips_metric import Lpips
from bench.scoring.metrics import Floats, measured, within_range
from bench.scoring.summary import median, summarise
from bench.trip import Reconstruction

Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """`readings` with their examples, and the `summary`; `order` (reading, example) the guess paired with
    each example, -1 for missing.

    `lpips_absent` says why LPIPS was not measured, `priors_from` what the priors were made of, `doubt` what makes the
    figures say nothing (of a reading of one's own that its truth does not explain).
    """

    readings: tuple[ReadingScore, ...]
    summary: Summary
    order: NDArray[np.int64]
    lpips_absent: str | None = None
    priors_from: str = "the public split"
    doubt: str | None = None


def score(
    truth_inputs: ArrayLike,
    truth_labels: ArrayLike,
    reconstruction: Reconstruction,
    *,
    kind: DataKind,
    groups: Sequence[Group] = (),
    priors: Mapping[str, ArrayLike],
    gallery: ArrayLike | None,
    lpips: Lpips | None = None,
    named: Naming | None = None,
    gallery_labels: ArrayLike | None = None,
) -> Scores:
    """Score a cell's reconstructions against the truth, by the rule of `bench.scoring.success`.

    `truth_inputs` (reading, example, *shape) in [0, 1] and `truth_labels` (reading, example) are the
    examples behind each reading; `priors` name → (reading, example, *shape); `gallery` (example, *shape)
    in [0, 1], with `gallery_labels` (example,) where the attacker was granted labels; `named` what an attack with a
    gallery of its own picked.

    Raises `PluginError` for a reconstruction of the wrong shape, `ValueError` for a truth outside [0, 1], no
    readings, or a table without groups.
    """
    truth, labels = within_range(truth_inputs), np.asarray(truth_labels, np.int64)
    if not truth.size:
        raise ValueError(f"expected readings with examples to score, got {truth.shape}")
    if kind == "table" and not groups:
        raise ValueError("a table is scored by its groups of columns, got none")
    guess = reconstruction.inputs.detach().cpu().double().numpy()
    order = assign(truth, guess)
    matched = in_order(guess, order)
    # one bad value is NaN all over its example: clipping would make a fair 1 of its infinity
    matched[~np.isfinite(matched).reshape(*order.shape, -1).all(axis=-1)] = np.nan
    columns: Columns = dict(measured(truth, matched, kind, groups))
    if lpips is not None and kind in LPIPS.kinds:
        columns[LPIPS.name] = lpips(truth, matched)

    prior_columns = {
        name: measured(truth, in_order(prior, assign(truth, prior)), kind, groups) for name, prior in priors.items()
    }
    best = np.full(order.shape, np.nan)
    for prior in prior_columns.values():
        best = np.fmax(best, prior[PSNR_DB.name])
    columns["prior_db"] = best
    # NaN is not below anything: without a prior on an example there is no margin to keep.
    over = columns[OVER_PRIOR_DB.name] = columns[PSNR_DB.name] - best
    if kind == "image":
        columns["success"] = success.image_success(columns[PSNR_DB.name], over)
        columns["strict"] = success.image_strict(columns[PSNR_DB.name], over)
    else:
        columns["success"] = success.table_success(*_table_figures(columns), over)
    identification = None
    if gallery is not None:
        known = None if gallery_labels is None else (labels, gallery_labels)
        identification = identify(truth, matched, gallery, known)
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
    )
    return Scores(readings=readings, summary=summary, order=order)


def _table_figures(columns: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    return columns[RMSE.name], columns["numeric_rmse"], columns["groups_right"]


def _prior(columns: Columns, prior: Mapping[str, Floats], kind: DataKind) -> PriorScore:
    """A prior's own figures, and on what share of the examples the attack is nearer than it."""
    image = kind == "image"
    near = success.image_reached(prior[PSNR_DB.name]) if image else success.table_reached(*_table_figures(prior))
    return PriorScore(
        asr=float(near.mean()),
        psnr_db_median=median(prior[PSNR_DB.name], PSNR_DB.failed),
        rmse_median=median(prior[RMSE.name], RMSE.failed),
        beaten=float((columns[PSNR_DB.name] > prior[PSNR_DB.name]).mean()),
    )


def _status(readings: Sequence[str], order: NDArray[np.int64], guess: Floats) -> NDArray[Any]:
    """Per example: `missing`, `nan`, or what the attack said of the reading."""
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
                priors_db={name: plain(prior[PSNR_DB.name][row, n]) for name, prior in priors.items()},
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
    """Share of each reading's labels that were named, as multisets; NaN where the attack names none."""
    classes = np.arange(max(labels.max(), claimed.max()) + 1)
    true = (labels[..., None] == classes).sum(axis=1)
    named = (claimed[..., None] == classes).sum(axis=1)
    share = np.minimum(true, named).sum(axis=1) / labels.shape[1]
    return np.where((claimed >= 0).any(axis=1), share, np.nan)


def plain(value: Any) -> Any:
    """A numpy scalar as a JSON value: None for what is not finite."""
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not np.isfinite(value) else value
