"""Draw a run's figure: the true examples above each defense's best reconstructions."""

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import SubElement

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from bench.kinds.base import Kind
from bench.leaderboard.board import AtPoint, Row
from bench.leaderboard.costs import UNDEFENDED
from bench.leaderboard.forms.charts import svg_to_pdf
from bench.leaderboard.forms.numbers import rate, share
from bench.leaderboard.forms.reconstructions import Runs, of_best
from bench.leaderboard.forms.svg import embed, svg_root, written
from bench.pictures.grid import Floats, chosen, drawn, encoded
from bench.record.names import distinct

_TILE, _GAP = 72, 6  # pixels
_LABEL = 250
_INK, _DIM, _PAPER = (20, 24, 31), (100, 108, 120), (255, 255, 255)


@dataclass(frozen=True, slots=True)
class Strip:
    """A line in the figure: a row of examples with a name and a caption."""

    name: str
    """Name of the defense, or of the true examples."""
    words: str
    """Caption below the name."""
    examples: Floats
    """Array (example, *shape) with values in [0, 1]."""
    kind: Kind
    """Kind of data, such as image or table: it decides how an example is drawn."""


def strips(rows: Sequence[Row], runs: Runs, *, point: str, private: bool = False) -> list[Strip]:
    """Return the lines of the figure: the true examples, then for each defense the reconstructions of its most
    successful attack at an interception point.

    - `rows`: board rows; only rows with the condition and the victims of the first row appear.
    - `runs`: map from the id of a cell (a configured run) to its run folder, which holds the arrays.
    - `point`: name of the interception point.
    - `private`: True also shows rows with private data.

    At most eight victims are shown, in the order of the readings (observed updates), never selected by success. Empty
    if there are no arrays."""
    rows = [row for row in rows if row.title == rows[0].title and (private or not row.private)]
    names = distinct(row.defense for row in rows)
    lines: list[Strip] = []
    # Undefended first, then by leakage, so that similar lines are neighbours.
    for row in sorted(rows, key=lambda row: (row.defense != UNDEFENDED, -_asr(row, point))):
        if (arrays := of_best(row, runs, point)) is None:
            continue
        *both, kind = arrays
        truth, guess = map(chosen, both)
        lines = lines or [Strip("victims", point, truth, kind)]
        if np.array_equal(truth, lines[0].examples):
            lines.append(Strip(names[row.defense], _words(row.points[point]), guess, kind))
    return lines


def _words(at: AtPoint) -> str:
    # the font has no ≥
    reached = rate(at.asr, lower_bound=at.lower_bound).replace("≥", "at least")
    words = f"{reached} of {at.examples} reconstructed"
    if at.identified is None:
        return words
    return f"{words}\n{share(at.identified.value)} identified, by chance {share(at.identified.chance)}"


def _asr(row: Row, point: str) -> float:
    at = row.points.get(point)
    return 0.0 if at is None or at.asr is None else at.asr


def _size(lines: Sequence[Strip]) -> tuple[int, int]:
    return _LABEL + len(lines[0].examples) * (_TILE + _GAP) + _GAP, len(lines) * (_TILE + _GAP) + _GAP


def png(lines: Sequence[Strip]) -> bytes:
    """Draw the figure `lines` as PNG."""
    image = Image.new("RGB", _size(lines), _PAPER)
    ink = ImageDraw.Draw(image)
    large, small = ImageFont.load_default(17), ImageFont.load_default(14)
    for number, line in enumerate(lines):
        top = _GAP + number * (_TILE + _GAP)
        ink.text((_GAP + 4, top + 8), _fitted(ink, line.name, large), fill=_INK, font=large)
        ink.text((_GAP + 4, top + 31), line.words, fill=_DIM, font=small, spacing=3)
        for column, pixels in enumerate(drawn(line.examples, line.kind)):
            tile = Image.fromarray(pixels).resize((_TILE, _TILE), Image.Resampling.NEAREST)
            image.paste(tile, (_LABEL + column * (_TILE + _GAP), top))
    return encoded(image)


def svg(lines: Sequence[Strip]) -> bytes:
    """Draw the figure `lines` as SVG, with names and captions as text. Each example is an image with its stored
    pixels."""
    width, height = _size(lines)
    root = svg_root(width, height)
    SubElement(root, "rect", width=str(width), height=str(height), fill=_colour(_PAPER))
    for number, line in enumerate(lines):
        top = _GAP + number * (_TILE + _GAP)
        texts = [
            (line.name, 16, 22, _INK),
            *((text, 12, 42 + 16 * n, _DIM) for n, text in enumerate(line.words.split("\n"))),
        ]
        for text, size, below, colour in texts:
            place = {"x": str(_GAP + 4), "y": str(top + below), "font-size": str(size), "fill": _colour(colour)}
            SubElement(root, "text", place).text = text
        for column, pixels in enumerate(drawn(line.examples, line.kind, side=1)):
            left = _LABEL + column * (_TILE + _GAP)
            embed(root, Image.fromarray(pixels), left, top, (_TILE, _TILE), style="image-rendering: pixelated")
    return written(root)


def pdf(lines: Sequence[Strip]) -> bytes:
    """Draw the figure `lines` as PDF, with texts as text."""
    return svg_to_pdf(svg(lines).decode())


FORMS = {".png": png, ".svg": svg, ".pdf": pdf}


def _colour(rgb: tuple[int, int, int]) -> str:
    return "#" + "".join(f"{part:02x}" for part in rgb)


def _fitted(ink: ImageDraw.ImageDraw, text: str, font: "ImageFont.FreeTypeFont | ImageFont.ImageFont") -> str:
    while ink.textlength(text, font) > _LABEL - 3 * _GAP and len(text) > 4:
        text = text[:-2].rstrip("…") + "…"
    return text
