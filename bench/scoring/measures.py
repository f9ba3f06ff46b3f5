"""Scoring: the function of each metric that needs a true example and its reconstruction alone.

(truth, guess, groups of columns) → (reading, example).  LPIPS needs a network, and what an attack has over a
prior the priors: `bench.scoring.score` adds both.
"""

from collections.abc import Callable, Mapping, Sequence

from bench.datasets.base import Group
from bench.record.metrics import GROUPS_RIGHT, METRICS, NUMERIC_RMSE, PSNR_DB, RMSE, RMSE_UNCLIPPED, SSIM
from bench.scoring.metrics import Floats, groups_right, numeric_rmse, psnr_db, rmse, rmse_unclipped
from bench.scoring.ssim import ssim

Measure = Callable[[Floats, Floats, Sequence[Group]], Floats]
MEASURES: Mapping[str, Measure] = {
    RMSE.name: lambda truth, guess, groups: rmse(truth, guess),
    RMSE_UNCLIPPED.name: lambda truth, guess, groups: rmse_unclipped(truth, guess),
    PSNR_DB.name: lambda truth, guess, groups: psnr_db(truth, guess),
    SSIM.name: lambda truth, guess, groups: ssim(truth, guess),
    NUMERIC_RMSE.name: numeric_rmse,
    GROUPS_RIGHT.name: groups_right,
}


def measured(truth: Floats, guess: Floats, kind: str, groups: Sequence[Group]) -> dict[str, Floats]:
    """Metric → (reading, example), of every metric that this kind of data has."""
    names = [metric.name for metric in METRICS if kind in metric.kinds and metric.name in MEASURES]
    return {name: MEASURES[name](truth, guess, groups) for name in names}
