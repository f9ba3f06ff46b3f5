"""One picture of a run: the victims, and below them what the best attack got back under each defense."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from bench.errors import RecordError
from bench.leaderboard.blocks import attack_name
from bench.leaderboard.board import Row
from bench.leaderboard.costs import UNDEFENDED
from bench.leaderboard.forms.numbers import distinct
from bench.pictures.grid import Floats, chosen, drawn
from bench.record import store as records
from bench.record.store import Record

_TILE, _GAP = 72, 6  # pixels
_LABEL = 250
_INK, _DIM, _PAPER = (20, 24, 31), (100, 108, 120), (255, 255, 255)


def sheet(
    rows: Sequence[Row], places: Mapping[str, Path], *, point: str, include_pictures: bool = False
) -> Image.Image | None:
    """Victims on top, a line for each of `rows` below: its best attack's reconstructions at `point`.

    `places` cell id → run folder.  Rows of the first row's title that met the same victims, as many as have
    pictures; up to eight victims, by their order and never by how well the attack did.  Private pictures are
    left out unless `include_pictures`.  None where there is nothing to show.
    """
    shown: list[tuple[str, str, Floats]] = []
    truth: Floats | None = None
    rows = [row for row in rows if row.title == rows[0].title and (include_pictures or not row.private)]
    names = distinct([row.defense for row in rows])
    # Undefended below the victims, then what leaks most: what the eye should compare stands together.
    for row in sorted(rows, key=lambda row: (row.defense != UNDEFENDED, -(_asr(row, point)))):
        found = _of_row(row, places, point)
        if found is None:
            continue
        was, guess = found
        if truth is None:
            truth = was
        at = row.points[point]
        if was.shape == truth.shape and np.array_equal(was, truth) and at.asr is not None:
            figure = f"{'at least ' if at.lower_bound else ''}{at.asr:.0%} of {at.pictures} leaked"
            shown.append((names[row.defense], figure, guess))
    if truth is None:
        return None
    return _drawn([("victims", f"{point}", truth), *shown])


def _asr(row: Row, point: str) -> float:
    at = row.points.get(point)
    return 0.0 if at is None or at.asr is None else at.asr


def _of_row(row: Row, places: Mapping[str, Path], point: str) -> tuple[Floats, Floats] | None:
    """Truth and reconstruction, (picture, *shape), of the best attack's first cell at that point."""
    at = row.points.get(point)
    for cell_id in row.cells if at is not None and at.best is not None else ():
        try:
            record = records.read(records.record_path(places[cell_id], cell_id))
            if record.arrays is None or not _is_best(record, row, point):
                continue
            arrays = records.read_arrays(places[cell_id], record.arrays)
            return chosen(arrays["truth"]), chosen(arrays["reconstruction"])
        except (RecordError, KeyError):
            continue
    return None


def _is_best(record: Record, row: Row, point: str) -> bool:
    best = row.points[point].best
    return best is not None and record.cell["point"] == point and attack_name(record.cell) == best.attack


def _drawn(lines: Sequence[tuple[str, str, Floats]]) -> Image.Image:
    columns = len(lines[0][2])
    page = Image.new(
        "RGB", (_LABEL + columns * (_TILE + _GAP) + _GAP, len(lines) * (_TILE + _GAP) + _GAP), _PAPER
    )
    ink = ImageDraw.Draw(page)
    large, small = ImageFont.load_default(17), ImageFont.load_default(14)
    for number, (name, figure, pictures) in enumerate(lines):
        top = _GAP + number * (_TILE + _GAP)
        ink.text((_GAP + 4, top + 14), _fitted(ink, name, large), fill=_INK, font=large)
        ink.text((_GAP + 4, top + 38), figure, fill=_DIM, font=small)
        for column, picture in enumerate(pictures):
            tile = Image.fromarray(drawn(picture[None])[0]).resize((_TILE, _TILE), Image.Resampling.NEAREST)
            page.paste(tile, (_LABEL + column * (_TILE + _GAP), top))
    return page


def _fitted(ink: ImageDraw.ImageDraw, text: str, font: "ImageFont.FreeTypeFont | ImageFont.ImageFont") -> str:
    """The text, cut where it would run into the pictures."""
    while ink.textlength(text, font) > _LABEL - 3 * _GAP and len(text) > 4:
        text = text[:-2].rstrip("…") + "…"
    return text
