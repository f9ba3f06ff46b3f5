"""A record's figures against one another: what its summary says, from the rows of its victims.

Whoever edits one of them has to edit all that hang on it.  That the rows themselves are true shows only when
cells are run again (`bench.submission.verify`).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from bench.cell import AttackCell, TrainingCell
from bench.points import POINTS
from bench.record.store import Record
from bench.sanitize import first_error, sanitize
from bench.scoring.metrics import PSNR_CAP_DB
from bench.scoring.summary import median, summarise

# Those of `bench.scoring.score`, which cannot be imported here: it needs torch.  A test holds them together.
PSNR_DB, STRICT_PSNR_DB, MARGIN_DB = 20.0, 30.0, 3.0
NUMERIC_RMSE, GROUPS_RIGHT = 0.2, 0.9
_NEEDED = ("asr", "lower_bound", "pictures", "readings", "psnr_db_median", "rmse_median")
_FIGURES = (
    "psnr_db",
    "rmse",
    "rmse_unclipped",
    "ssim",
    "lpips",
    "numeric_rmse",
    "groups_right",
    "over_floor_db",
)
_NEAR = 1e-9  # relative and absolute: sums of the same numbers on another machine
_MOST = 3  # findings of one record
Number = Annotated[float, Field(allow_inf_nan=False)] | None


class _Row(BaseModel):
    # Fields that are not named here may come: a record may say more than the board reads.
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class Picture(_Row):
    """One picture as the board reads it (docs/RECORDS.md, A victim)."""

    status: str
    success: bool
    strict: bool | None = None
    identified: bool | None
    label: int
    psnr_db: Number
    rmse: Number
    rmse_unclipped: Number
    ssim: Number = None
    lpips: Number = None
    numeric_rmse: Number = None
    groups_right: Number = None
    best_floor_db: Number
    over_floor_db: Number
    floors_db: dict[str, Number]


class Victim(_Row):
    """One reading."""

    status: str
    leaked: bool
    pictures: Annotated[list[Picture], Field(min_length=1)]
    labels: list[int]
    label_accuracy: Number
    evaluations: int
    outer: int
    restarts: int
    reading_snr_db: Number
    reading_cosine: Number


_VICTIMS = TypeAdapter(list[Victim])


def findings(record: Record, cell: AttackCell | TrainingCell) -> list[str]:
    """What does not fit in a record, a few lines of it at most."""
    if record.status != "done":
        told = isinstance(record.reason, str) and bool(record.reason)
        empty = not record.victims and record.arrays is None
        return (
            [] if told and empty else [f"is {record.status}, and has no reason or has results all the same"]
        )
    if isinstance(cell, TrainingCell):
        return _training(record, cell)
    try:
        victims = _VICTIMS.validate_python(record.victims)
    except ValidationError as error:
        return [f"victims: {first_error(error)}"]
    found = [*_counts(victims, cell), *_judged(victims)]
    if not found:  # columns need rows of one length
        found += _summary(record.summary, victims)
    return found[:_MOST]


def _counts(victims: Sequence[Victim], cell: AttackCell) -> Iterator[str]:
    if len(victims) != cell.readings:
        yield f"{len(victims)} readings, its cell asks for {cell.readings}"
    federated = cell.federated
    if cell.point not in POINTS:
        yield f"no such point: {sanitize(repr(cell.point), 40)}"
        return
    each = POINTS[cell.point].examples(
        batch=federated.batch, steps=federated.steps, senders=federated.per_round
    )
    if wrong := next((len(victim.pictures) for victim in victims if len(victim.pictures) != each), None):
        yield f"{wrong} pictures in a reading, its cell makes {each}"


def _judged(victims: Sequence[Victim]) -> Iterator[str]:
    """Verdicts that do not follow from the picture's own figures."""
    for row, victim in enumerate(victims):
        if victim.leaked != any(picture.success for picture in victim.pictures):
            yield f"reading {row}: leaked is {victim.leaked}, its pictures say otherwise"
        for number, picture in enumerate(victim.pictures):
            for said, follows, name in _verdicts(picture):
                if not same(said, follows):
                    yield f"reading {row} picture {number}: {name} is {said}, its figures give {follows}"


def _verdicts(picture: Picture) -> Iterator[tuple[Any, Any, str]]:
    """(what the record says, what follows, of what)."""
    floors = [value for value in picture.floors_db.values() if value is not None]
    yield picture.best_floor_db, max(floors, default=None), "best_floor_db"
    over = None
    if picture.psnr_db is not None and picture.best_floor_db is not None:
        over = picture.psnr_db - picture.best_floor_db
    yield picture.over_floor_db, over, "over_floor_db"
    db = None
    if picture.rmse is not None:
        db = -20 * math.log10(max(picture.rmse, 10 ** (-PSNR_CAP_DB / 20)))
    yield picture.psnr_db, db, "psnr_db"
    if picture.numeric_rmse is None and picture.groups_right is None:
        near = picture.psnr_db is not None and picture.psnr_db >= PSNR_DB
        hit = near and not (over is not None and over < MARGIN_DB)
        if picture.strict is not None:  # a row of a table that is no number has neither
            yield picture.strict, hit and (picture.psnr_db or 0.0) >= STRICT_PSNR_DB, "strict"
        yield picture.success, hit, "success"
        return
    far = (picture.numeric_rmse or 0.0) > NUMERIC_RMSE
    wrong = picture.groups_right is not None and picture.groups_right < GROUPS_RIGHT
    yield picture.success, picture.rmse is not None and not far and not wrong, "success"


def _summary(summary: Mapping[str, Any], victims: Sequence[Victim]) -> Iterator[str]:
    yield from (f"summary has no {name}" for name in _NEEDED if name not in summary)
    for name, follows in _recomputed(victims).items():
        if name in summary and not same(summary[name], follows):
            yield f"summary.{name} is {sanitize(summary[name], 40)}, its pictures give {follows}"
    floors = summary.get("floors", {})
    for name in floors if isinstance(floors, dict) else ():
        values = _column([[picture.floors_db.get(name) for picture in v.pictures] for v in victims])
        follows = median(values, -np.inf)
        said = floors[name].get("psnr_db_median") if isinstance(floors[name], dict) else "no table"
        if not same(said, follows):
            yield f"summary.floors: psnr_db_median is {sanitize(said, 40)}, its pictures give {follows}"


def _recomputed(victims: Sequence[Victim]) -> dict[str, Any]:
    """The figures of the summary that follow from the rows, by the harness's own rule."""
    pictures = [victim.pictures for victim in victims]
    columns: dict[str, NDArray[Any]] = {
        name: _column([[getattr(picture, name) for picture in row] for row in pictures]) for name in _FIGURES
    }
    columns["success"] = np.array([[picture.success for picture in row] for row in pictures])
    columns["identified"] = np.array([[bool(picture.identified) for picture in row] for row in pictures])
    columns["status"] = np.array([[picture.status for picture in row] for row in pictures], object)
    strict = [[picture.strict for picture in row] for row in pictures]
    if any(value is not None for row in strict for value in row):
        columns["strict"] = np.array(strict, object) == True  # noqa: E712 (elementwise; None is no success)
    per_reading = {
        name: np.array([getattr(victim, name) for victim in victims], np.float64)
        for name in ("label_accuracy", "evaluations", "outer", "restarts")
    }
    found = summarise(columns, per_reading, {}, [victim.status for victim in victims])
    if any(picture.identified is None for row in pictures for picture in row):
        found = {name: value for name, value in found.items() if not name.startswith("identification")}
    if any(picture.floors_db for row in pictures for picture in row):
        beaten = float((columns["over_floor_db"] > 0).mean())
        found |= {"prior_beaten": beaten, "beats_prior": beaten > 0.5}
    del found["floors"]
    snr = np.array([victim.reading_snr_db for victim in victims], np.float64)
    cosine = np.array([victim.reading_cosine for victim in victims], np.float64)
    return found | {
        "reading_snr_db_median": _plain(np.median(snr)), "reading_snr_db_least": _plain(np.min(snr)),
        "reading_cosine_median": _plain(np.median(cosine)),
    }  # fmt: skip


def _training(record: Record, cell: TrainingCell) -> list[str]:
    summary, found = record.summary, []
    try:
        curve = [(int(round_), float(accuracy)) for round_, accuracy in summary["curve"]]
        last = 0.0 if summary["diverged"] else curve[-1][1]
        if not same(summary["accuracy"], last):
            found.append(f"summary.accuracy is {sanitize(summary['accuracy'], 40)}, its curve ends at {last}")
        if not 0 <= int(summary["rounds"]) <= cell.rounds:
            found.append(f"{summary['rounds']} rounds, its cell asks for {cell.rounds}")
        tight = [one["epsilon"] for one in summary["privacy"] if one["convention"] == "tight"]
        if not same(summary["epsilon"], tight[0] if tight else None):
            found.append(f"summary.epsilon is {sanitize(summary['epsilon'], 40)}, its privacy says otherwise")
    except (TypeError, ValueError, KeyError, IndexError, OverflowError, AttributeError) as error:
        found.append(f"summary is no training's ({type(error).__name__}: {sanitize(error, 80)})")
    return found


def same(said: Any, follows: Any) -> bool:
    """Whether two figures are equal but for rounding; None and truth values only to themselves."""
    if said is None or follows is None or isinstance(said, bool) or isinstance(follows, bool):
        return said is follows
    if not isinstance(said, int | float) or not isinstance(follows, int | float):
        return bool(said == follows)
    try:
        return math.isclose(said, follows, rel_tol=_NEAR, abs_tol=_NEAR)
    except OverflowError:  # a whole number beyond every float
        return False


def _column(rows: list[list[Any]]) -> NDArray[np.float64]:
    """None becomes NaN."""
    return np.array(rows, np.float64)


def _plain(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
