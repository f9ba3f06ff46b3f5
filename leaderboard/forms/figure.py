"""One figure of a run: the victims, and below them what the best attack got back under each defense."""

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from bench.leaderboard.board import AtPoint, Row
from bench.leaderboard.costs import UNDEFENDED
from bench.leaderboard.forms.numbers import rate, share
from bench.leaderboard.forms.reconstructions import Runs, of_best
from bench.pictures.grid import Floats, chosen, drawn
from bench.record.names import distinct

_TILE, _GAP = 72, 6  # pixels
_LABEL = 250
_INK, _DIM, _PAPER = (20, 24, 31), (100, 108, 120), (255, 255, 255)


def figure(rows: Sequence[Row], runs: Runs, *, point: str, private: bool = False) -> Image.Image | None:
    """Victims on top, a line for each of `rows` below: its best attack's reconstructions at `point`.

    `runs` cell id → run folder.  Rows of the first row's title that met the same victims, as many as have
    reconstructions; up to eight victims, by their order and never by how well the attack did.  Private data are
    left out unless `private`.  None where there is nothing to show.
    """
    rows = [row for row in rows if row.title == rows[0].title and (private or not row.private)]
    names = distinct(row.defense for row in rows)
    lines: list[tuple[str, str, Floats]] = []
    # Undefended below the victims, then what leaks most: what the eye should compare stands together.
    for row in sorted(rows, key=lambda row: (row.defense != UNDEFENDED, -_asr(row, point))):
        if (arrays := of_best(row, runs, point)) is None:
            continue
        truth, guess = map(chosen, arrays)
        lines = lines or [("victims", point, truth)]
        if np.array_equal(truth, lines[0][2]):
            at = row.points[point]
            lines.append((names[row.defense], _words(at), guess))
    return _drawn(lines) if lines else None


def _words(at: AtPoint) -> str:
    """What came back, and what is recognised of what did not: a blurred face is no 0."""
    # the font has no sign for it
    reached = rate(at.asr, lower_bound=at.lower_bound).replace("≥", "at least")
    words = f"{reached} of {at.examples} reconstructed"
    if at.identified is None:
        return words
    return f"{words}\n{share(at.identified.value)} identified, by chance {share(at.identified.chance)}"


def _asr(row: Row, point: str) -> float:
    at = row.points.get(point)
    return 0.0 if at is None or at.asr is None else at.asr


def _drawn(lines: Sequence[tuple[str, str, Floats]]) -> Image.Image:
    columns = len(lines[0][2])
    size = (_LABEL + columns * (_TILE + _GAP) + _GAP, len(lines) * (_TILE + _GAP) + _GAP)
    image = Image.new("RGB", size, _PAPER)
    ink = ImageDraw.Draw(image)
    large, small = ImageFont.load_default(17), ImageFont.load_default(14)
    for number, (name, words, examples) in enumerate(lines):
        top = _GAP + number * (_TILE + _GAP)
        ink.text((_GAP + 4, top + 8), _fitted(ink, name, large), fill=_INK, font=large)
        ink.text((_GAP + 4, top + 31), words, fill=_DIM, font=small, spacing=3)
        for column, pixels in enumerate(drawn(examples)):
            tile = Image.fromarray(pixels).resize((_TILE, _TILE), Image.Resampling.NEAREST)
            image.paste(tile, (_LABEL + column * (_TILE + _GAP), top))
    return image


def _fitted(ink: ImageDraw.ImageDraw, text: str, font: "ImageFont.FreeTypeFont | ImageFont.ImageFont") -> str:
    """The text, cut where it would run into the examples."""
    while ink.textlength(text, font) > _LABEL - 3 * _GAP and len(text) > 4:
        text = text[:-2].rstrip("…") + "…"
    return text
