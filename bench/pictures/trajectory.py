"""The trajectory: what an attack's examples looked like on the way, one row an example.

The same examples in the same order as in `bench.pictures.grid`, and for the eye only as well.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from bench.pictures.grid import GAP, PAPER, Floats, chosen, drawn, sheet
from bench.record.schema import Record
from bench.record.store import read_arrays

_INK, _PALE = (40, 40, 40), (125, 125, 125)
_SIZE, _LINE = 11, 20  # pixels: of the letters, and from one line of text to the next
_CAPTION = "evaluations"
_SIDE = 56  # pixels: ten columns of full size would be most of what a cell sends to MLflow


def over_iterations(truth: Floats, trajectory: Floats, marks: Sequence[int]) -> Image.Image | None:
    """Up to eight examples after so many evaluations, from the start to the end, then the truth.

    `truth` (reading, example, *shape) and `trajectory` (mark, reading, example, *shape), already paired, in [0, 1]
    (clipped here); the trajectory may have fewer readings, the first.  `marks`: the evaluations spent, written above
    the columns.  None where there is nothing to show.  Raises `ValueError` where the shapes do not fit.
    """
    shape = trajectory.shape
    fits = trajectory.ndim >= 4 and shape[2:] == truth.shape[1:] and shape[1] <= len(truth)
    if not fits or len(trajectory) != len(marks):
        raise ValueError(
            f"trajectory must be (mark, reading, example, *shape) of {len(marks)} marks and a truth "
            f"{truth.shape}, got {shape}"
        )
    if 0 in shape:
        return None
    columns = [drawn(chosen(examples), _SIDE) for examples in (*trajectory, truth[: shape[1]])]
    labels = [*(f"{mark:,}" for mark in marks), "truth"]
    font = ImageFont.load_default(_SIZE)
    height, width = columns[0][0].shape[:2]
    column_width = max(width, *(int(np.ceil(font.getlength(text))) for text in labels))
    # The truth stands apart: it is not on the way.
    lefts = [GAP + n * (column_width + GAP) for n in range(len(marks))]
    lefts.append(lefts[-1] + column_width + 3 * GAP)
    head = GAP + 2 * _LINE
    right = max(lefts[-1] + column_width, GAP + int(np.ceil(font.getlength(_CAPTION)))) + GAP
    image = Image.new("RGB", (right, head + len(columns[0]) * (height + GAP)), (int(PAPER),) * 3)
    pen = ImageDraw.Draw(image)
    pen.text((GAP, GAP + _LINE // 2), _CAPTION, _PALE, font, anchor="lm")
    for left, column, text in zip(lefts, columns, labels, strict=True):
        image.paste(Image.fromarray(sheet(column[:, None], GAP)), (left + (column_width - width) // 2, head))
        pen.text((left + column_width / 2, GAP + _LINE * 3 // 2), text, _INK, font, anchor="mm")
    return image


def of_record(run: Path, record: Record) -> Image.Image | None:
    """The trajectory of a record's arrays, or None where its attack kept none.

    Raises `RecordError` for missing or damaged arrays, `ValueError` where they are not the record's.
    """
    if record.arrays is None or not _marks(record):
        return None
    return of_arrays(record, read_arrays(run, record.arrays))


def of_arrays(record: Record, arrays: Mapping[str, Floats]) -> Image.Image | None:
    """As `of_record`, of arrays that were read already."""
    marks = _marks(record)
    if not marks or "truth" not in arrays or "trajectory" not in arrays:
        return None
    return over_iterations(arrays["truth"], arrays["trajectory"], marks)


def _marks(record: Record) -> Sequence[int]:
    result = record.attack
    return result.trajectory.evaluations if result and result.trajectory else ()
