"""Rows → small pictures for the page: truth above reconstruction, of each row's best attack at its worst point.

Which pictures are shown is settled by their order (`bench.pictures.grid`), never by how well the attack did on them.
Pictures are kept at their own size and enlarged where they are shown: a digit is a few hundred bytes.
"""

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bench.errors import RecordError
from bench.leaderboard.blocks import attack_name
from bench.leaderboard.board import Row
from bench.pictures.grid import PAPER, chosen, drawn
from bench.record.store import read, read_arrays, record_path

TOTAL = 1_000_000  # bytes of all thumbnails of a page: base64 adds a third, and 500 rows stay below 5 MB
MOST = 40_000  # bytes of one thumbnail, however few there are
# Pictures, longest side in pixels, quality (100: lossless): the first that fits is taken.
LADDER = (
    (8, 64, 100), (8, 64, 80), (6, 48, 70), (5, 40, 60), (4, 32, 60), (3, 32, 40), (2, 28, 30), (1, 24, 10),
)  # fmt: skip
_GAP = 1  # pixels, between pictures
Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thumbnail:
    """A WebP file of `width` × `height` pixels: `pictures` truths above as many reconstructions."""

    webp: bytes
    width: int
    height: int
    pictures: int


def of_rows(
    rows: Sequence[Row], places: Mapping[str, Path], *, include_pictures: bool = False
) -> dict[tuple[str, str], Thumbnail]:
    """The thumbnails of all rows that have one, by (key, defense), the smaller the more rows there are.

    `places` says in which run folder the record of a cell id lies.
    """
    limit = min(MOST, TOTAL // max(1, len(rows)))
    found = ((row, of_row(row, places, include_pictures=include_pictures, limit=limit)) for row in rows)
    return {(row.key, row.defense): own for row, own in found if own is not None}


def of_row(
    row: Row, places: Mapping[str, Path], *, include_pictures: bool = False, limit: int = MOST
) -> Thumbnail | None:
    """The thumbnail of a row, of at most `limit` bytes; None where there is nothing to show.

    Private pictures are nothing to show unless `include_pictures`; neither are missing or damaged records
    and arrays: a page without one picture is better than no page.
    """
    worst = row.worst
    if row.private and not include_pictures:
        return None
    if worst is None or worst.best is None or not row.cells or row.cells[0] not in places:
        return None
    place = places[row.cells[0]]
    try:
        record = read(record_path(place, row.cells[0]))
        if (record.cell["point"], attack_name(record.cell)) != (worst.point, worst.best.attack):
            return None
        arrays = read_arrays(place, record.arrays) if record.arrays else {}
        return fitting(arrays["truth"], arrays["reconstruction"], limit)
    except RecordError:
        return None
    except (KeyError, ValueError, TypeError, IndexError):
        return None  # written by another version, or by hand


def fitting(truth: Floats, guess: Floats, limit: int) -> Thumbnail | None:
    """The richest of `LADDER` that fits into `limit` bytes, of truths and reconstructions in [0, 1], both
    (reading, picture, *shape); None where there are none, or none fits.

    Raises `ValueError` where the two differ in shape.
    """
    if truth.shape != guess.shape or truth.ndim < 3:
        raise ValueError(f"truth and reconstruction differ: {truth.shape} and {guess.shape}")
    if 0 in truth.shape:
        return None
    for pictures, side, quality in LADDER:
        rows = [_tiles(values, pictures, side) for values in (truth, guess)]
        page = _page(rows)
        buffer = io.BytesIO()
        page.save(buffer, "WEBP", lossless=quality == 100, quality=quality, method=4)
        if buffer.tell() <= limit:
            return Thumbnail(
                webp=buffer.getvalue(), width=page.width, height=page.height, pictures=len(rows[0])
            )
    return None


def _tiles(values: Floats, pictures: int, side: int) -> list[Image.Image]:
    return [_tile(item, side) for item in chosen(values)[:pictures]]


def _tile(item: Floats, side: int) -> Image.Image:
    """One example at its own size, or shrunk until its longest side is `side` pixels."""
    picture = Image.fromarray(drawn(item[None])[0])
    own = item.shape[-2] if item.ndim > 1 else math.ceil(math.sqrt(len(item)))
    height = min(own, max(1, side * own // max(own, item.shape[-1] if item.ndim > 1 else own)))
    width = max(1, round(picture.width * height / picture.height))
    return picture.resize((width, height), Image.Resampling.BOX)


def _page(rows: Iterable[Sequence[Image.Image]]) -> Image.Image:
    tiles = [list(row) for row in rows]
    width, height = tiles[0][0].size
    page = Image.new(
        "RGB",
        (len(tiles[0]) * (width + _GAP) - _GAP, len(tiles) * (height + _GAP) - _GAP),
        (int(PAPER),) * 3,
    )
    for down, row in enumerate(tiles):
        for right, tile in enumerate(row):
            page.paste(tile, (right * (width + _GAP), down * (height + _GAP)))
    return page
