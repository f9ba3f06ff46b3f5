"""Texts in words: each true text above its reconstruction, wrong tokens in brackets."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from bench.kinds.texts import PAD
from bench.pictures.grid import GAP, alike, chosen
from bench.sanitize import sanitize

LINE = 20  # pixels, height of a line
MOST = 64  # tokens of a text
TRUTH, RIGHT, WRONG = (90, 90, 90), (0, 110, 60), (190, 20, 60)
_UNKNOWN = "\ufffd"  # an id without a token
_SIZE, _WIDTH, _PAIR = 15, 900, 10  # pixels: letters, longest line, space between two texts
Colour = tuple[int, int, int]
Parts = list[tuple[str, Colour]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """A true text and its reconstruction, in printable tokens."""

    truth: tuple[str, ...]
    """Tokens of the true text."""
    guess: tuple[str, ...]
    """Tokens of the reconstruction."""
    right: tuple[bool, ...]
    """For each token of the reconstruction: True if the true text has this token in this place."""

    @property
    def marked(self) -> tuple[str, ...]:
        """The tokens of the reconstruction, wrong tokens in brackets."""
        return tuple(token if right else f"[{token}]" for token, right in zip(self.guess, self.right, strict=True))


def words(truth: NDArray[Any], guess: NDArray[Any], tokens: Sequence[str]) -> list[Words]:
    """Return up to eight true texts with their reconstructions, at most 64 tokens of each; the first text of every
    reading (observed update) comes first.

    - `truth`, `guess` (reading, example, position): token ids in the same order.
    - `tokens`: token of each id. An id without a token becomes �.

    Raises `ValueError` for differing shapes."""
    if not alike(truth, guess):
        return []
    made = []
    for true, guessed in zip(*(_ids(chosen(values)) for values in (truth, guess)), strict=True):
        kept = np.flatnonzero(guessed != PAD)[:MOST]
        made.append(
            Words(
                truth=tuple(_token(tokens, at) for at in true[true != PAD][:MOST]),
                guess=tuple(_token(tokens, at) for at in guessed[kept]),
                right=tuple(bool(each) for each in guessed[kept] == true[kept]),
            )
        )
    return made


def picture(texts: Sequence[Words]) -> Image.Image:
    """Draw `texts`: the true text in grey, and below it the reconstruction with right tokens in green and wrong tokens
    in brackets and red. Long lines are wrapped."""
    pairs = [[*wrapped(true_parts(text), _WIDTH), *wrapped(guess_parts(text), _WIDTH)] for text in texts]
    width = max((length(line) for pair in pairs for line in pair), default=0)
    height = sum(len(pair) * LINE + _PAIR for pair in pairs)
    page = Image.new("RGB", (round(width) + 2 * GAP, height + GAP), "white")
    draw = ImageDraw.Draw(page)
    top = GAP
    for pair in pairs:
        for line in pair:
            write(draw, line, GAP, top)
            top += LINE
        top += _PAIR
    return page


def true_parts(text: Words) -> Parts:
    """Return the true tokens of `text` with their colour."""
    return [(token, TRUTH) for token in text.truth]


def guess_parts(text: Words) -> Parts:
    """Return the tokens of the reconstruction in `text` with their colours, wrong tokens in brackets."""
    return [(token, RIGHT if right else WRONG) for token, right in zip(text.marked, text.right, strict=True)]


def wrapped(parts: Parts, width: float) -> list[Parts]:
    """Break a text for a picture into lines: divide the coloured tokens `parts` into lines of at most `width` pixels,
    each with at least a token. Empty `parts` give a line without tokens."""
    lines: list[Parts] = [[]]
    for part in parts:
        if lines[-1] and length([*lines[-1], part]) > width:
            lines.append([])
        lines[-1].append(part)
    return lines


def length(line: Iterable[tuple[str, Colour]]) -> float:
    """Return the width of a drawn `line` in pixels."""
    return float(_font().getlength(" ".join(token for token, _ in line)))


def write(draw: ImageDraw.ImageDraw, line: Parts, left: float, top: float) -> None:
    """Draw a `line` of tokens with `draw`, from the point `left`, `top` in pixels."""
    font = _font()
    for token, colour in line:
        draw.text((left, top), token, colour, font)
        left += font.getlength(f"{token} ")


def _font() -> "ImageFont.FreeTypeFont | ImageFont.ImageFont":
    return ImageFont.load_default(_SIZE)


def _ids(texts: NDArray[Any]) -> NDArray[np.int64]:
    ids: NDArray[np.int64] = np.where(np.isfinite(texts), np.round(texts), PAD).astype(np.int64)
    return ids


def _token(tokens: Sequence[str], at: int) -> str:
    return sanitize(tokens[at]) if 0 < at < len(tokens) else _UNKNOWN
