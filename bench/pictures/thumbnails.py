"""Thumbnails for a page: true examples above their reconstructions, within a size limit.

Examples are selected by order (`bench.pictures.grid`), never by success.  They keep their size in pixels and are
enlarged on display, so a digit takes a few hundred bytes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bench.kinds.base import Kind
from bench.pictures.grid import Floats, alike, chosen, drawn, encoded, sheet

TOTAL = 1_000_000  # bytes of all thumbnails of a page: base64 adds a third, and 500 rows stay below 5 MB
MOST = 40_000  # bytes of one thumbnail, however few there are
# Examples, longest side in pixels, quality (100: lossless): the first that fits is taken.
LADDER = ((8, 64, 100), (8, 64, 80), (6, 48, 70), (5, 40, 60), (4, 32, 60), (3, 32, 40), (2, 28, 30), (1, 24, 10))
_GAP = 1  # pixels, between examples


@dataclass(frozen=True, slots=True, kw_only=True)
class Thumbnail:
    """Small WebP image of true examples above their reconstructions, for a page with many pictures."""

    webp: bytes
    """Content of the file."""
    width: int
    """Width in pixels."""
    height: int
    """Height in pixels."""
    examples: int
    """Number of true examples."""


def fitting(truth: Floats, guess: Floats, kind: Kind, limit: int) -> Thumbnail | None:
    """Return the most detailed thumbnail that needs at most `limit` bytes; None for empty arrays, or if all sizes are
    too large. `truth` and `guess` are (reading, example, *shape) in [0, 1]. `kind` is the kind of data. Sizes are
    tested from large to small: number of examples, side in pixels, quality (`LADDER`). Raises `ValueError` for
    differing shapes."""
    if not alike(truth, guess):
        return None
    for examples, side, quality in LADDER:
        tiles = [[_tile(item, kind, side) for item in chosen(values)[:examples]] for values in (truth, guess)]
        page = Image.fromarray(sheet(np.array(tiles), _GAP))
        webp = encoded(page, "WEBP", lossless=quality == 100, quality=quality, method=4)
        if len(webp) <= limit:
            return Thumbnail(webp=webp, width=page.width, height=page.height, examples=len(tiles[0]))
    return None


def _tile(item: Floats, kind: Kind, side: int) -> NDArray[np.uint8]:
    """Draw the example `item` at its stored size, or shrunk to a longest side of `side` pixels."""
    image = Image.fromarray(drawn(item[None], kind)[0])
    rows, columns = kind.pixels(item[None]).shape[1:3]
    height = min(rows, max(1, side * rows // max(rows, columns)))
    width = max(1, round(image.width * height / image.height))
    return np.asarray(image.resize((width, height), Image.Resampling.BOX))
