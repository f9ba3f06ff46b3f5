"""Draw a run's figure: the true examples above each defense's best reconstructions."""

from collections.abc import Iterable, Iterator, Sequence
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
from bench.pictures.words import LINE, Colour, Parts, guess_parts, length, true_parts, wrapped, write
from bench.record.names import distinct

_TILE, _GAP = 72, 6  # pixels
_LABEL = 250
_TEXT = 760  # pixels, the longest line of a text
_INK, _DIM, _PAPER = (20, 24, 31), (100, 108, 120), (255, 255, 255)


@dataclass(frozen=True, slots=True)
class Strip:
    """A line in the figure of true examples and reconstructions: a row of examples with a name and a caption."""

    name: str
    """Name of the defense, or of the true examples."""
    words: str
    """Caption below the name."""
    examples: Floats
    """Array (example, *shape) with values in [0, 1]."""
    kind: Kind
    """Kind of data, such as image or table: it decides how an example is drawn."""
    texts: tuple[Parts, ...] = ()
    """Lines of tokens with their colours in place of pictures; empty for other kinds of data than texts."""


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
        if (shown := of_best(row, runs, point)) is None:
            continue
        truth, guess = chosen(shown.truth), chosen(shown.guess)
        lines = lines or [Strip("victims", point, truth, shown.kind, _lines(map(true_parts, shown.texts)))]
        if np.array_equal(truth, lines[0].examples):
            texts = _lines(map(guess_parts, shown.texts))
            lines.append(Strip(names[row.defense], _words(row.points[point]), guess, shown.kind, texts))
    return lines


def _lines(texts: Iterable[Parts]) -> tuple[Parts, ...]:
    return tuple(line for text in texts for line in wrapped(text, _TEXT))


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
    tiles = len(lines[0].examples) * (_TILE + _GAP)
    texts = [length(text) for line in lines for text in line.texts]
    return _LABEL + round(max(texts, default=tiles)) + _GAP, sum(map(_height, lines)) + _GAP


def _height(line: Strip) -> int:
    return max(_TILE, len(line.texts) * LINE) + _GAP


def _placed(lines: Sequence[Strip]) -> Iterator[tuple[int, Strip]]:
    """Yield the upper end of each line in pixels, and the line."""
    top = _GAP
    for line in lines:
        yield top, line
        top += _height(line)


def png(lines: Sequence[Strip]) -> bytes:
    """Draw the figure of true examples and reconstructions as PNG; return the file's content. `lines` are the figure's
    lines, from `strips`."""
    image = Image.new("RGB", _size(lines), _PAPER)
    ink = ImageDraw.Draw(image)
    large, small = ImageFont.load_default(17), ImageFont.load_default(14)
    for top, line in _placed(lines):
        ink.text((_GAP + 4, top + 8), _fitted(ink, line.name, large), fill=_INK, font=large)
        ink.text((_GAP + 4, top + 31), line.words, fill=_DIM, font=small, spacing=3)
        for number, text in enumerate(line.texts):
            write(ink, text, _LABEL, top + number * LINE)
        for column, pixels in enumerate(() if line.texts else drawn(line.examples, line.kind)):
            tile = Image.fromarray(pixels).resize((_TILE, _TILE), Image.Resampling.NEAREST)
            image.paste(tile, (_LABEL + column * (_TILE + _GAP), top))
    return encoded(image)


def svg(lines: Sequence[Strip]) -> bytes:
    """Draw the figure of true examples and reconstructions as SVG, with names and captions as text; return the file's
    content. Each example is an image with its stored pixels. `lines` are the figure's lines, from `strips`."""
    width, height = _size(lines)
    root = svg_root(width, height)
    SubElement(root, "rect", width=str(width), height=str(height), fill=_colour(_PAPER))
    for top, line in _placed(lines):
        texts = [
            (line.name, 16, 22, _INK),
            *((text, 12, 42 + 16 * n, _DIM) for n, text in enumerate(line.words.split("\n"))),
        ]
        for text, size, below, colour in texts:
            place = {"x": str(_GAP + 4), "y": str(top + below), "font-size": str(size), "fill": _colour(colour)}
            SubElement(root, "text", place).text = text
        for number, tokens in enumerate(line.texts):
            place = {"x": str(_LABEL), "y": str(top + number * LINE + 14), "font-size": "14"}
            if tokens:  # widths as measured, whatever the reader's font
                place |= {"textLength": f"{length(tokens):.0f}", "lengthAdjust": "spacingAndGlyphs"}
            element = SubElement(root, "text", place)
            for token, colour in tokens:
                span = SubElement(element, "tspan", fill=_colour(colour))
                span.text, span.tail = token, " "
        for column, pixels in enumerate(() if line.texts else drawn(line.examples, line.kind, side=1)):
            left = _LABEL + column * (_TILE + _GAP)
            embed(root, Image.fromarray(pixels), left, top, (_TILE, _TILE), style="image-rendering: pixelated")
    return written(root)


def pdf(lines: Sequence[Strip]) -> bytes:
    """Draw the figure of true examples and reconstructions as PDF with selectable text; return the file's content.
    `lines` are the figure's lines, from `strips`."""
    return svg_to_pdf(svg(lines).decode())


FORMS = {".png": png, ".svg": svg, ".pdf": pdf}


def _colour(rgb: Colour) -> str:
    return "#" + "".join(f"{part:02x}" for part in rgb)


def _fitted(ink: ImageDraw.ImageDraw, text: str, font: "ImageFont.FreeTypeFont | ImageFont.ImageFont") -> str:
    while ink.textlength(text, font) > _LABEL - 3 * _GAP and len(text) > 4:
        text = text[:-2].rstrip("…") + "…"
    return text
