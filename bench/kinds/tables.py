"""Tables: columns scaled to [0, 1]; success is judged by numeric columns and categories."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.kinds.base import Booleans, Figures, Kind, Success
from bench.kinds.unit import UNIT

NUMERIC_RMSE, GROUPS_RIGHT = 0.2, 0.9
MARGIN_DB = 3.0  # over the best prior-only guess


def _reached(figures: Figures) -> Booleans:
    """Require a standardised numeric RMSE of at most .2, and at least 90 % right categorical groups. For an absent type
    of columns the metric is NaN and passes. A reconstruction with NaN has a NaN `rmse` and fails."""
    far = np.asarray(figures["numeric_rmse"], np.float64) > NUMERIC_RMSE
    wrong = np.asarray(figures["groups_right"], np.float64) < GROUPS_RIGHT
    return ~np.isnan(np.asarray(figures["rmse"], np.float64)) & ~far & ~wrong


def _pixels(items: NDArray[Any]) -> NDArray[Any]:
    """Draw a row as a square of grey cells, line by line, filled up with white."""
    count, width = items.shape
    side = math.ceil(math.sqrt(width))
    square = np.concatenate([items, np.ones((count, side * side - width))], 1).reshape(count, side, side)
    return np.repeat(square[..., None], 3, -1)


TABLE = Kind(
    name="table",
    article="a table",
    plural="tables",
    axes=("feature",),
    values=UNIT,
    success=Success(
        words=f"numeric RMSE ≤ .2, 90 % of categories right, and {MARGIN_DB:g} dB more than a guess without gradient",
        reached=_reached,
        closeness="psnr_db",
        over="over_prior_db",
        margin=MARGIN_DB,
    ),
    pixels=_pixels,
    default_dataset="cancer",
    default_model="mlp",
    shapes=((13,),),
    columns=True,
)
