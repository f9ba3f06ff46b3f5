"""Picture trails: what the attacker's pictures looked like on the way, one row a picture.

The same pictures in the same order as in `bench.pictures.grid`, and for the eye only as well.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from bench.pictures.grid import GAP, PAPER, Floats, chosen, drawn
from bench.record.store import Record, read_arrays

_INK, _PALE = (40, 40, 40), (125, 125, 125)
_SIZE, _LINE = 11, 20  # pixels: of the letters, and from one line of text to the next
_CAPTION = "evaluations"
_SIDE = 56  # pixels: ten columns of full size would be most of what a cell sends to MLflow


def over_iterations(truth: Floats, trail: Floats, marks: Sequence[int]) -> Image.Image | None:
    """Up to eight pictures after so many evaluations, from the start to the end, then the truth.

    `truth` (reading, picture, *shape) and `trail` (mark, reading, picture, *shape), already paired, in
    [0, 1] (clipped here); the trail may have fewer readings, the first.  `marks`: the evaluations
    spent, written above the columns.  None where there is nothing to show.  Raises `ValueError` where
    the shapes do not fit.
    """
    fit = trail.ndim >= 4 and trail.shape[2:] == truth.shape[1:] and trail.shape[1] <= len(truth)
    if not fit or len(trail) != len(marks):
        raise ValueError(
            f"trail must be (mark, reading, picture, *shape) of {len(marks)} marks and a truth "
            f"{truth.shape}, got {trail.shape}"
        )
    if 0 in trail.shape:
        return None
    stages = [*trail, truth[: trail.shape[1]]]
    columns = [drawn(chosen(stage), _SIDE) for stage in stages]
    labels = [*(f"{mark:,}" for mark in marks), "truth"]
    font = ImageFont.load_default(_SIZE)
    height, width = columns[0][0].shape[:2]
    column_width = max(width, *(int(np.ceil(font.getlength(text))) for text in labels))
    # The truth stands apart: it is no stage of the way.
    lefts = [GAP + n * (column_width + GAP) for n in range(len(marks))]
    lefts.append(lefts[-1] + column_width + 3 * GAP)
    head = GAP + 2 * _LINE
    right = max(lefts[-1] + column_width, GAP + int(np.ceil(font.getlength(_CAPTION)))) + GAP
    page = np.full((head + len(columns[0]) * (height + GAP), right, 3), PAPER)
    for left, column in zip(lefts, columns, strict=True):
        start = left + (column_width - width) // 2
        for row, tile in enumerate(column):
            top = head + row * (height + GAP)
            page[top : top + height, start : start + width] = tile
    image = Image.fromarray(page)
    pen = ImageDraw.Draw(image)
    pen.text((GAP, GAP + _LINE // 2), _CAPTION, _PALE, font, anchor="lm")
    for left, text in zip(lefts, labels, strict=True):
        pen.text((left + column_width / 2, GAP + _LINE * 3 // 2), text, _INK, font, anchor="mm")
    return image


def of_record(run: Path, record: Record) -> Image.Image | None:
    """The trail of a record's arrays, or None where its attack kept none.

    Raises `RecordError` for missing or damaged arrays, `ValueError` where they are not the record's.
    """
    if record.arrays is None or not record.summary.get("trail_evaluations"):
        return None
    return of_arrays(record, read_arrays(run, record.arrays))


def of_arrays(record: Record, arrays: Mapping[str, Floats]) -> Image.Image | None:
    """As `of_record`, of arrays that were read already."""
    marks = record.summary.get("trail_evaluations")
    if not marks:
        return None
    if not isinstance(marks, list) or not all(isinstance(mark, int) for mark in marks):
        raise ValueError("trail_evaluations are no list of numbers")
    if "truth" not in arrays or "trail" not in arrays:
        return None
    return over_iterations(arrays["truth"], arrays["trail"], marks)
