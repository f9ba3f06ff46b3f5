"""Reconstruction grid: the true examples above their reconstructions, with a column for each example.  Pictures only
illustrate; figures are computed elsewhere.  Examples are selected by order, never by success."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bench.kinds.base import Kind
from bench.record.files import write_atomically

EXAMPLES = 8  # at most, in one image
GAP = 6  # pixels between two examples
PAPER = np.uint8(255)  # a number, because filling with a colour takes ten times as long
_SIDE = 96  # pixels: a readable image
_BROKEN = np.array([214, 39, 100], np.uint8)  # colour for NaN: black or white could be a value
Floats = NDArray[np.floating[Any]]


def grid(truth: Floats, guess: Floats, kind: Kind) -> Image.Image | None:
    """Draw up to eight true examples above their reconstructions; None for empty arrays.

    - `truth`, `guess` (reading, example, *shape): true examples and reconstructions in the same order, in [0, 1]
      (clipped here).
    - `kind`: kind of data; a table row is drawn as a square.

    The first examples of all readings (observed updates) come first, then the second examples. Raises `ValueError` for
    differing shapes."""
    if not alike(truth, guess):
        return None
    page = sheet(np.stack([drawn(chosen(values), kind) for values in (truth, guess)]), GAP)
    return Image.fromarray(np.pad(page, ((GAP, GAP), (GAP, GAP), (0, 0)), constant_values=PAPER))


def alike(truth: Floats, guess: Floats) -> bool:
    """Check that `truth` and `guess`, true examples and reconstructions (reading, example, *shape), can be drawn as
    pairs: return True if they hold examples, False if they are empty. Raises `ValueError` for differing shapes."""
    if truth.shape != guess.shape or truth.ndim < 3:
        raise ValueError(
            f"truth and reconstruction must be (reading, example, *shape) alike, got {truth.shape} and {guess.shape}"
        )
    return 0 not in truth.shape


def sheet(tiles: NDArray[np.uint8], gap: int) -> NDArray[np.uint8]:
    """Join small pictures `tiles` (row, column, height, width, 3) to an image, with `gap` pixels between them."""
    padded = np.pad(tiles, ((0, 0), (0, 0), (0, gap), (0, gap), (0, 0)), constant_values=PAPER)
    rows, columns, height, width, _ = padded.shape
    page = padded.swapaxes(1, 2).reshape(rows * height, columns * width, 3)
    return page[: rows * height - gap, : columns * width - gap]


def save(image: Image.Image, path: Path) -> None:
    """Write the image as a PNG file, atomically."""
    write_atomically(path, encoded(image))


def encoded(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    """Return the image as the bytes of an image file in the format `form` (such as "PNG" or "WEBP"), written with
    Pillow's `options`."""
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def chosen(values: Floats) -> Floats:
    """Select at most eight examples for a picture from `values` (reading, example, *shape): (chosen, *shape). The first
    example of each reading (observed update) comes before second examples."""
    return np.swapaxes(values, 0, 1).reshape(-1, *values.shape[2:])[:EXAMPLES]


def drawn(items: Floats, kind: Kind, side: int = _SIDE) -> NDArray[np.uint8]:
    """Draw examples `items` (n, *shape) in [0, 1] as pixels (n, height, width, 3), each value enlarged to a square.
    `side` is the approximate height in pixels, at least the example's height. Values are clipped; values that are not
    finite have a special colour."""
    colours = kind.pixels(items)
    finite = np.isfinite(colours).all(-1, keepdims=True)
    shades = np.round(np.clip(np.where(finite, colours, 0), 0, 1) * 255)
    pixels = np.where(finite, shades, _BROKEN).astype(np.uint8)
    enlarged = max(1, round(side / pixels.shape[1]))
    return pixels.repeat(enlarged, 1).repeat(enlarged, 2)
