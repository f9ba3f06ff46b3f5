"""Images: pixels in [0, 1], judged by PSNR."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.kinds.base import Booleans, Figures, Kind, Success
from bench.kinds.unit import UNIT

PSNR_DB, STRICT_PSNR_DB = 20.0, 30.0
MARGIN_DB = 3.0  # over the best prior-only guess


def _reached(figures: Figures) -> Booleans:
    return np.asarray(figures["psnr_db"], np.float64) >= PSNR_DB


def _strict(figures: Figures) -> Booleans:
    return np.asarray(figures["psnr_db"], np.float64) >= STRICT_PSNR_DB


def _pixels(items: NDArray[Any]) -> NDArray[Any]:
    """Show three channels as colours; any other number of channels as grey, by their mean."""
    if items.shape[1] == 3:
        return np.moveaxis(items, 1, -1)
    return np.repeat(items.mean(1)[..., None], 3, -1)


IMAGE = Kind(
    name="image",
    article="an image",
    plural="pictures",
    axes=("channel", "height", "width"),
    values=UNIT,
    success=Success(
        words=f"PSNR ≥ {PSNR_DB:g} dB, and {MARGIN_DB:g} dB more than a guess without gradient",
        reached=_reached,
        strict=_strict,
        strict_words=f"with PSNR ≥ {STRICT_PSNR_DB:g} dB",
        closeness="psnr_db",
        over="over_prior_db",
        margin=MARGIN_DB,
    ),
    pixels=_pixels,
    default_dataset="digits",
    default_model="dlg-lenet",
    shapes=((1, 8, 8), (1, 28, 28), (3, 32, 32)),
    spatial=True,
)
