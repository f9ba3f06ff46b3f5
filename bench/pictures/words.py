"""Texts in words: each true text above its reconstruction, with the right tokens marked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from bench.kinds.texts import PAD
from bench.pictures.grid import GAP, alike, chosen
from bench.sanitize import sanitize

_UNKNOWN = "\ufffd"  # an id without a token
_FONT = 16  # points
_TRUTH, _RIGHT, _WRONG = (90, 90, 90), (0, 110, 60), (214, 39, 100)
_LINE, _PAIR = 22, 12  # pixels: height of a line, space between two texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """A true text and its reconstruction, in printable tokens."""

    truth: tuple[str, ...]
    """Tokens of the true text."""
    guess: tuple[str, ...]
    """Tokens of the reconstruction."""
    right: tuple[bool, ...]
    """For each token of the reconstruction: True if the true text has this token in this place."""


def words(truth: NDArray[Any], guess: NDArray[Any], tokens: Sequence[str]) -> list[Words]:
    """Return up to eight true texts with their reconstructions; the first text of every reading (observed update) comes
    first.

    - `truth`, `guess` (reading, example, position): token ids in the same order.
    - `tokens`: token of each id. An id without a token becomes �.

    Raises `ValueError` for differing shapes."""
    if not alike(truth, guess):
        return []
    made = []
    for true, guessed in zip(*(_ids(chosen(values)) for values in (truth, guess)), strict=True):
        kept = np.flatnonzero(guessed != PAD)
        made.append(
            Words(
                truth=tuple(_token(tokens, at) for at in true[true != PAD]),
                guess=tuple(_token(tokens, at) for at in guessed[kept]),
                right=tuple(bool(each) for each in guessed[kept] == true[kept]),
            )
        )
    return made


def picture(texts: Sequence[Words]) -> Image.Image:
    """Draw `texts`: a line with the true text in grey, and a line with its reconstruction, right tokens in green and
    wrong tokens in red."""
    font = ImageFont.load_default(_FONT)
    lines = [
        line
        for text in texts
        for line in (
            [(token, _TRUTH) for token in text.truth],
            [(token, _RIGHT if right else _WRONG) for token, right in zip(text.guess, text.right, strict=True)],
        )
    ]
    width = max((font.getlength(" ".join(token for token, _ in line)) for line in lines), default=0)
    height = len(texts) * (2 * _LINE + _PAIR)
    page = Image.new("RGB", (round(width) + 2 * GAP, height + GAP), "white")
    draw = ImageDraw.Draw(page)
    for number, line in enumerate(lines):
        x, y = float(GAP), GAP + number * _LINE + number // 2 * _PAIR
        for token, colour in line:
            draw.text((x, y), token, colour, font)
            x += font.getlength(f"{token} ")
    return page


def _ids(texts: NDArray[Any]) -> NDArray[np.int64]:
    ids: NDArray[np.int64] = np.where(np.isfinite(texts), np.round(texts), PAD).astype(np.int64)
    return ids


def _token(tokens: Sequence[str], at: int) -> str:
    return sanitize(tokens[at]) if 0 < at < len(tokens) else _UNKNOWN
