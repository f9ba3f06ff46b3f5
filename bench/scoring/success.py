"""Scoring: when an example counts as leaked, said once.  Arrays of any shape, or single figures; NaN: no figure."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

PSNR_DB, STRICT_PSNR_DB = 20.0, 30.0
MARGIN_DB = 3.0  # over the best prior-only baseline
NUMERIC_RMSE, GROUPS_RIGHT = 0.2, 0.9
Booleans = NDArray[np.bool_]


def image_reached(psnr_db: ArrayLike) -> Booleans:
    """An image is near enough, whatever a prior comes to: PSNR ≥ 20 dB."""
    return np.asarray(psnr_db, np.float64) >= PSNR_DB


def image_success(psnr_db: ArrayLike, over_prior_db: ArrayLike) -> Booleans:
    """An image leaked: near enough, and 3 dB above the best prior where there is one."""
    return image_reached(psnr_db) & ~(np.asarray(over_prior_db, np.float64) < MARGIN_DB)


def image_strict(psnr_db: ArrayLike, over_prior_db: ArrayLike) -> Booleans:
    """An image leaked at PSNR ≥ 30 dB."""
    return image_success(psnr_db, over_prior_db) & (np.asarray(psnr_db, np.float64) >= STRICT_PSNR_DB)


def table_reached(rmse: ArrayLike, numeric_rmse: ArrayLike, groups_right: ArrayLike) -> Booleans:
    """A row of a table is near enough: numeric RMSE ≤ .2 standardised and ≥ 90 % of its categorical groups right.

    A table may lack numeric columns or categorical ones; a row that is not finite (`rmse` NaN) fails all the same.
    """
    far = np.asarray(numeric_rmse, np.float64) > NUMERIC_RMSE
    wrong = np.asarray(groups_right, np.float64) < GROUPS_RIGHT
    return ~np.isnan(np.asarray(rmse, np.float64)) & ~far & ~wrong


def table_success(
    rmse: ArrayLike, numeric_rmse: ArrayLike, groups_right: ArrayLike, over_prior_db: ArrayLike
) -> Booleans:
    """A row of a table leaked: near enough, and 3 dB above the best prior where there is one."""
    near = table_reached(rmse, numeric_rmse, groups_right)
    return near & ~(np.asarray(over_prior_db, np.float64) < MARGIN_DB)
