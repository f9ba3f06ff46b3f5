"""Scoring: Victims' truth and a Reconstruction in, figures for the record out.

The order is fixed: pair once, measure everything on that pairing, judge, summarise.  A picture
that is missing or not finite keeps its place and counts as not leaked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bench.datasets.base import Group, Kind
from bench.scoring.assign import pair, paired
from bench.scoring.identify import Identification, identify
from bench.scoring.lpips_metric import Lpips
from bench.scoring.metrics import (
    Floats,
    groups_right,
    numeric_rmse,
    psnr_db,
    rmse,
    rmse_unclipped,
    unit,
)
from bench.scoring.ssim import ssim
from bench.scoring.summary import summarise
from bench.trip import Reconstruction

PSNR_DB, STRICT_PSNR_DB, MARGIN_DB = 20.0, 30.0, 3.0
NUMERIC_RMSE, GROUPS_RIGHT = 0.2, 0.9
Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """`readings`, one dictionary each with its `pictures`, and the `summary`: JSON types, no NaN; `order`
    (reading, picture) the guess paired with each picture, -1 for missing."""

    readings: list[dict[str, Any]]
    summary: dict[str, Any]
    order: NDArray[np.int64]


def score(
    truth_inputs: ArrayLike,
    truth_labels: ArrayLike,
    reconstruction: Reconstruction,
    *,
    kind: Kind,
    groups: Sequence[Group] = (),
    floors: Mapping[str, ArrayLike],
    gallery: ArrayLike,
    lpips: Lpips | None = None,
) -> Scores:
    """Score a cell's reconstructions against the truth.

    `truth_inputs` (reading, picture, *shape) in [0, 1] and `truth_labels` (reading, picture) are
    the distinct pictures behind each reading; `floors` name → (reading, picture, *shape);
    `gallery` (example, *shape) in [0, 1].  A picture is a success with PSNR ≥ 20 dB (strict: 30)
    and ≥ 3 dB over the best floor on that picture; a row of a table with a standardised numeric
    RMSE ≤ .2 and ≥ 90 % of the categorical groups right, and there is no strict.

    Raises `PluginError` for a reconstruction of the wrong shape, `ValueError` for a truth outside
    [0, 1], no readings, or a table without groups.
    """
    truth, labels = unit(truth_inputs), np.asarray(truth_labels, np.int64)
    if not truth.size:
        raise ValueError(f"expected readings with pictures to score, got {truth.shape}")
    if kind == "table" and not groups:
        raise ValueError("a table is scored by its groups of columns, got none")
    guess = reconstruction.inputs.detach().cpu().double().numpy()
    order = pair(truth, guess)
    found = _finite_or_nan(paired(guess, order))
    columns = _measured(truth, found, kind, groups)
    columns["lpips"] = _lpips(truth, found, lpips if kind == "image" else None)

    floor_columns = {
        name: _measured(truth, paired(floor, pair(truth, floor)), kind, groups)
        for name, floor in floors.items()
    }
    best = np.full(order.shape, np.nan)
    for floor in floor_columns.values():
        best = np.fmax(best, floor["psnr_db"])
    columns["best_floor_db"] = best
    columns["over_floor_db"] = columns["psnr_db"] - best
    # NaN is not below anything: without a floor on a picture there is no margin to keep.
    over = ~(columns["over_floor_db"] < MARGIN_DB)
    columns["success"] = columns["reached"] & over if kind == "image" else columns["reached"]
    columns["strict"] = columns["success"] & (columns["psnr_db"] >= STRICT_PSNR_DB)
    identification = identify(truth, found, gallery)
    columns["identified"] = identification.hits
    columns["status"] = _status(reconstruction.status, order, found)
    return _assembled(
        columns, floor_columns, labels, order, reconstruction, identification, strict=kind == "image"
    )


def _measured(truth: Floats, found: Floats, kind: Kind, groups: Sequence[Group]) -> Columns:
    """Every figure that needs the pair alone, and whether it reaches the threshold without floors."""
    columns: Columns = {
        "rmse": rmse(truth, found),
        "rmse_unclipped": rmse_unclipped(truth, found),
        "psnr_db": psnr_db(truth, found),
    }
    if kind == "image":
        columns["ssim"] = ssim(truth, found)
        columns["reached"] = columns["psnr_db"] >= PSNR_DB
        return columns
    columns["numeric_rmse"] = numeric_rmse(truth, found, groups)
    columns["groups_right"] = groups_right(truth, found, groups)
    # A table may lack numeric columns or categorical ones; a row that is not finite fails all the same.
    columns["reached"] = (
        ~np.isnan(columns["rmse"])
        & ~(columns["numeric_rmse"] > NUMERIC_RMSE)
        & ~(columns["groups_right"] < GROUPS_RIGHT)
    )
    return columns


def _lpips(truth: Floats, found: Floats, lpips: Lpips | None) -> Floats:
    return np.full(truth.shape[:2], np.nan) if lpips is None else lpips(truth, found)


def _finite_or_nan(found: Floats) -> Floats:
    """NaN all over a picture that has one bad pixel: clipping would make a fair 1 of its infinity."""
    bad = ~np.isfinite(found).reshape(*found.shape[:2], -1).all(axis=-1)
    found[bad] = np.nan
    return found


def _status(readings: Sequence[str], order: NDArray[np.int64], found: Floats) -> NDArray[Any]:
    """Per picture: `missing`, `nan`, or what the attack said of the reading."""
    said = np.array(readings, dtype=object)[:, None].repeat(order.shape[1], axis=1)
    said[np.isnan(found).reshape(*order.shape, -1).any(axis=-1)] = "nan"
    said[order < 0] = "missing"
    return said


def _assembled(
    columns: Columns,
    floors: Mapping[str, Columns],
    labels: NDArray[np.int64],
    order: NDArray[np.int64],
    reconstruction: Reconstruction,
    identification: Identification,
    *,
    strict: bool,
) -> Scores:
    named = reconstruction.labels.detach().cpu().numpy()
    accuracy = _label_accuracy(labels, named)
    if not strict:
        del columns["strict"]
    per_reading: Columns = {
        "label_accuracy": accuracy,
        "loss": reconstruction.loss.detach().cpu().double().numpy(),
        "evaluations": reconstruction.evaluations.cpu().numpy(),
        "outer": reconstruction.outer.cpu().numpy(),
        "restarts": reconstruction.restarts.cpu().numpy(),
    }
    readings = []
    for row in range(len(labels)):
        pictures = [
            {name: plain(values[row, i]) for name, values in columns.items() if name != "reached"}
            | {"label": int(labels[row, i]), "guess": int(order[row, i]) if order[row, i] >= 0 else None}
            | {"floors_db": {name: plain(floor["psnr_db"][row, i]) for name, floor in floors.items()}}
            for i in range(labels.shape[1])
        ]
        readings.append(
            {name: plain(values[row]) for name, values in per_reading.items()}
            | {"status": reconstruction.status[row], "leaked": bool(columns["success"][row].any())}
            | {"labels": [int(label) for label in named[row]], "pictures": pictures}
        )
    summary = summarise(columns, per_reading, floors, reconstruction.status)
    summary |= {"gallery": identification.gallery, "identification_chance": identification.chance}
    return Scores(readings=readings, summary=summary, order=order)


def _label_accuracy(labels: NDArray[np.int64], named: NDArray[Any]) -> Floats:
    """Share of each reading's labels that were named, as multisets; NaN where the attack names none."""
    classes = np.arange(max(labels.max(), named.max()) + 1)
    there = (labels[..., None] == classes).sum(axis=1)
    claimed = (named[..., None] == classes).sum(axis=1)
    share = np.minimum(there, claimed).sum(axis=1) / labels.shape[1]
    return np.where((named >= 0).any(axis=1), share, np.nan)


def plain(value: Any) -> Any:
    """A numpy scalar as a JSON value: None for what is not finite."""
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not np.isfinite(value) else value
