"""Picture strips: what was there above what the attacker drew, one column a picture.

For the eye only: no figure is computed here.  Which pictures are shown is settled by their order,
never by how well the attack did on them.
"""

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bench.records import Record, read_arrays, write_atomically

PICTURES = 8  # at most, in one image
GAP = 6  # pixels between two pictures
PAPER = np.uint8(255)  # a number: filling with a colour takes ten times as long
_SIDE = 96  # pixels: a readable picture
_BROKEN = np.array([214, 39, 100], np.uint8)  # not a number: neither black nor white would be honest
Floats = NDArray[np.floating[Any]]


def strip(truth: Floats, guess: Floats) -> Image.Image | None:
    """Truth above reconstruction, for up to eight pictures; None where there is nothing to show.

    Both (reading, picture, *shape), already paired, in [0, 1] (clipped here).  First pictures of all
    readings come first, then second ones.  A row of a table is drawn as a square block of cells.
    Raises `ValueError` where the two differ in shape.
    """
    if truth.shape != guess.shape or truth.ndim < 3:
        raise ValueError(
            f"truth and reconstruction must be (reading, picture, *shape) alike, "
            f"got {truth.shape} and {guess.shape}"
        )
    if 0 in truth.shape:
        return None
    rows = [[drawn(item) for item in chosen(values)] for values in (truth, guess)]
    height, width = rows[0][0].shape[:2]
    columns = len(rows[0])
    page = np.full((2 * height + 3 * GAP, columns * (width + GAP) + GAP, 3), PAPER)
    for row, tiles in enumerate(rows):
        top = GAP + row * (height + GAP)
        for column, tile in enumerate(tiles):
            left = GAP + column * (width + GAP)
            page[top : top + height, left : left + width] = tile
    return Image.fromarray(page)


def of_record(run: Path, record: Record) -> Image.Image | None:
    """The strip of a record's arrays, or None where it has none.

    Raises `RecordError` for missing or damaged arrays.
    """
    if record.arrays is None:
        return None
    arrays = read_arrays(run, record.arrays)
    if "truth" not in arrays or "reconstruction" not in arrays:
        return None
    return strip(arrays["truth"], arrays["reconstruction"])


def save(image: Image.Image, path: Path) -> None:
    """Write as PNG, whole or not at all."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    write_atomically(path, buffer.getvalue())


def chosen(values: Floats) -> Floats:
    """Those shown, (reading, picture, *shape) → (at most eight, *shape): first pictures first."""
    return np.swapaxes(values, 0, 1).reshape(-1, *values.shape[2:])[:PICTURES]


def drawn(item: Floats) -> NDArray[np.uint8]:
    """One example (*shape) in [0, 1] → pixels (height, width, 3), each value enlarged to a square.

    Clipped; what is not finite has a colour of its own.
    """
    colours = _colours(item)
    finite = np.isfinite(colours).all(-1, keepdims=True)
    shades = np.round(np.clip(np.where(finite, colours, 0), 0, 1) * 255)
    pixels = np.where(finite, shades, _BROKEN).astype(np.uint8)
    enlarged = max(1, round(_SIDE / pixels.shape[0]))
    return pixels.repeat(enlarged, 0).repeat(enlarged, 1)


def _colours(item: Floats) -> Floats:
    """Values (height, width, 3): colour as it is, anything else as grey."""
    if item.ndim == 1:
        side = math.ceil(math.sqrt(len(item)))
        item = np.concatenate([item, np.ones(side * side - len(item))]).reshape(side, side)
    elif item.ndim == 3:
        item = np.moveaxis(item, 0, -1) if len(item) == 3 else item.mean(0)
    return item if item.ndim == 3 else np.repeat(item[..., None], 3, -1)
