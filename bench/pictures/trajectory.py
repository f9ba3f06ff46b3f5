"""Trajectory: an attack's reconstructions over its iterations, with a row for each example.  It shows the same
examples in the same order as `bench.pictures.grid`, and only illustrates."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from bench.kinds.base import Kind
from bench.pictures.grid import GAP, PAPER, Floats, chosen, drawn, sheet
from bench.record.schema import Record
from bench.record.store import read_arrays

_INK, _PALE = (40, 40, 40), (125, 125, 125)
_SIZE, _LINE = 11, 20  # pixels: of the letters, and from one line of text to the next
_CAPTION = "evaluations"
_SIDE = 56  # pixels: ten columns of full size would be most of what a cell sends to MLflow


def over_iterations(truth: Floats, trajectory: Floats, marks: Sequence[int], kind: Kind) -> Image.Image | None:
    """Draw up to eight reconstructions over the course of an attack, then the truth; None for empty arrays.

    - `truth` (reading, example, *shape), `trajectory` (mark, reading, example, *shape): both in [0, 1] (clipped here),
      with the same order of examples; the trajectory may hold only the first readings (observed updates).
    - `marks`: evaluation counts of the trajectory, shown above the columns.
    - `kind`: kind of data.

    Raises `ValueError` for mismatched shapes."""
    shape = trajectory.shape
    fits = trajectory.ndim >= 4 and shape[2:] == truth.shape[1:] and shape[1] <= len(truth)
    if not fits or len(trajectory) != len(marks):
        raise ValueError(
            f"trajectory must be (mark, reading, example, *shape) of {len(marks)} marks and a truth "
            f"{truth.shape}, got {shape}"
        )
    if 0 in shape:
        return None
    columns = [drawn(chosen(examples), kind, _SIDE) for examples in (*trajectory, truth[: shape[1]])]
    labels = [*(f"{mark:,}" for mark in marks), "truth"]
    font = ImageFont.load_default(_SIZE)
    height, width = columns[0][0].shape[:2]
    column_width = max(width, *(int(np.ceil(font.getlength(text))) for text in labels))
    # A gap separates the truth, which is no iteration.
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
    """Draw the trajectory (reconstructions in the course of an attack) from a record's stored arrays in the run folder
    `run`; None if the attack stored no trajectory. Raises `RecordError` for missing or damaged arrays, `ValueError` for
    arrays that belong to another record."""
    if record.arrays is None or not _marks(record):
        return None
    return of_arrays(record, read_arrays(run, record.arrays))


def of_arrays(record: Record, arrays: Mapping[str, Floats]) -> Image.Image | None:
    """Draw the trajectory (reconstructions in the course of an attack) from a record's loaded `arrays` (name → values);
    None if the attack stored no trajectory."""
    marks = _marks(record)
    if record.attack is None or not marks or "truth" not in arrays or "trajectory" not in arrays:
        return None
    return over_iterations(arrays["truth"], arrays["trajectory"], marks, record.attack.data_kind)


def _marks(record: Record) -> Sequence[int]:
    result = record.attack
    return result.trajectory.evaluations if result and result.trajectory else ()
