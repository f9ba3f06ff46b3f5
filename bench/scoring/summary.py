"""Scoring: a cell's figures over its pictures.  Nothing that failed is dropped from any of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.scoring.intervals import wilson

Columns = Mapping[str, NDArray[Any]]
# Column → what a failed picture counts as in the median.
_WORST = {
    "rmse": np.inf, "rmse_unclipped": np.inf, "psnr_db": -np.inf, "ssim": -np.inf, "lpips": np.inf,
    "numeric_rmse": np.inf, "groups_right": -np.inf, "over_floor_db": -np.inf,
}  # fmt: skip


def summarise(
    columns: Columns, per_reading: Columns, floors: Mapping[str, Columns], status: Sequence[str]
) -> dict[str, Any]:
    """The summary of one cell: shares over pictures with Wilson intervals, medians, floors, failures.

    `columns` (reading, picture), `per_reading` (reading,), `floors` name → columns; `status` of
    each reading as the attack gave it.  `lower_bound` says that the ASR is to be read as "at
    least": some pictures diverged or are not numbers, and might have leaked under a better attack.
    """
    success, picture_status = columns["success"], columns["status"]
    failed = (picture_status != "ok") & (picture_status != "missing")
    summary: dict[str, Any] = {
        "readings": len(success),
        "pictures": success.size,
        **_share("asr", success),
        "lower_bound": bool(failed.any()) or any(said != "ok" for said in status),
        **_share("readings_leaked", np.any(success, axis=1)),
        **_share("identification", columns["identified"]),
    }
    strict = columns.get("strict")
    summary |= {"asr_strict": None} if strict is None else _share("asr_strict", strict)
    summary |= {f"{name}_median": median(columns.get(name), worst) for name, worst in _WORST.items()}
    summary |= {
        "label_accuracy": _label_accuracy(per_reading["label_accuracy"]),
        "evaluations_median": float(np.median(per_reading["evaluations"])),
        "outer_median": float(np.median(per_reading["outer"])),
        "diverged_share": float((picture_status == "diverged").mean()),
        "nan_share": float((picture_status == "nan").mean()),
        "missing_share": float((picture_status == "missing").mean()),
    }
    return summary | _against_floors(columns, floors)


def median(values: NDArray[Any] | None, worst: float) -> float | None:
    """The median with NaN counted as `worst`; None where that leaves no number, or nothing was measured."""
    if values is None or np.isnan(values).all():
        return None
    found = float(np.median(np.where(np.isnan(values), worst, values)))
    return found if np.isfinite(found) else None


def _against_floors(columns: Columns, floors: Mapping[str, Columns]) -> dict[str, Any]:
    """Each prior's own figures, and on what share of the pictures the attack is nearer than it.

    `beats_prior`: nearer than the best floor on more than half of the pictures; None without floors.
    """
    figures = {
        name: {
            "asr": float(floor["reached"].mean()),
            "psnr_db_median": median(floor["psnr_db"], -np.inf),
            "rmse_median": median(floor["rmse"], np.inf),
            "beaten": float((columns["psnr_db"] > floor["psnr_db"]).mean()),
        }
        for name, floor in floors.items()
    }
    beaten = float((columns["over_floor_db"] > 0).mean()) if floors else None
    return {
        "floors": figures,
        "prior_beaten": beaten,
        "beats_prior": None if beaten is None else beaten > 0.5,
    }


def _share(name: str, hits: NDArray[Any]) -> dict[str, float]:
    low, high = wilson(int(hits.sum()), hits.size)
    return {name: float(hits.mean()), f"{name}_low": low, f"{name}_high": high}


def _label_accuracy(values: NDArray[np.float64]) -> float | None:
    """Mean over readings; one for which the attack named no label has named none right."""
    return None if np.isnan(values).all() else float(np.nan_to_num(values, nan=0.0).mean())
