"""Texts: sequences of token ids, judged by the tokens in their places."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bench.kinds.base import Array, Booleans, Figures, Floats, Kind, Success

PAD = 0  # id behind a text's last token: every stored text has the same length
TOKENS_RIGHT, MARGIN = 0.9, 0.1
_DRAWN = 16  # ids of `draw`: every vocabulary has as many
_GOLDEN = (math.sqrt(5) - 1) / 2  # spreads the colours of neighbouring ids


def lengths(ids: NDArray[Any]) -> NDArray[np.int64]:
    """Return the number of tokens of each text in `ids` (..., position), without padding: (...,)."""
    filled = ids != PAD
    counts: NDArray[np.int64] = np.where(filled.any(-1), ids.shape[-1] - filled[..., ::-1].argmax(-1), 0)
    return counts


def misplaced(first: Floats, second: Floats) -> Floats:
    """Return the share of positions with different token ids in the texts `first` and `second` (..., position), among
    the positions of the longer text: (...,)."""
    longer = np.maximum(lengths(first), lengths(second))
    share: Floats = (first != second).sum(-1) / np.maximum(longer, 1)
    return share


@dataclass(frozen=True, slots=True)
class Tokens:
    """Operations on texts as token ids, which are whole numbers: 0 is padding. Every text has the same number of
    positions."""

    def floats(self, stored: NDArray[Any]) -> NDArray[np.float32]:
        return stored.astype(np.float32)  # exact below 2^24 tokens

    def fault(self, stored: NDArray[Any]) -> str | None:
        if stored.dtype.kind not in "iu":
            return f"token ids are {stored.dtype}; integers expected"
        return _fault(stored)

    def checked(self, truth: ArrayLike) -> Floats:
        ids = np.asarray(truth, np.float64)
        if not np.array_equal(ids, np.round(ids)):
            raise ValueError("token ids must be whole numbers")
        if fault := _fault(ids):
            raise ValueError(fault)
        return ids

    def cleaned(self, guess: ArrayLike) -> Floats:
        return np.maximum(np.round(np.asarray(guess, np.float64)), PAD)

    def apart(self, truth: ArrayLike, guess: ArrayLike) -> Floats:
        return misplaced(np.asarray(truth, np.float64), np.asarray(guess, np.float64))

    def distances(self, first: Floats, second: Floats) -> Floats:
        return misplaced(first[..., :, None, :], second[..., None, :, :])

    def centre(self, examples: Array) -> Array:
        """Return the most frequent id at each position of the `examples`: (example, position) → (position,)."""
        columns = [examples[:, position] for position in range(examples.shape[1])]
        most = [int((column[:, None] == column).sum(1).argmax()) for column in columns]
        centre: Array = examples[most, list(range(len(most)))]
        return centre

    def draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[Any]:
        ids = random.integers(1, _DRAWN, shape)
        ends = random.integers(1, shape[-1] + 1, shape[:-1])
        return np.where(np.arange(shape[-1]) < ends[..., None], ids, PAD).astype(np.float64)


def _fault(ids: NDArray[Any]) -> str | None:
    if ids.size and ids.min() < PAD:
        return f"token ids must be 0 (padding) or higher, got {ids.min():g}"
    filled = (ids != PAD).sum(-1)
    if not filled.all():
        return "a text has no token"
    if not np.array_equal(filled, lengths(ids)):
        return "a text has padding (id 0) between its tokens; padding stands behind the last token"
    return None


def _reached(figures: Figures) -> Booleans:
    return np.asarray(figures["tokens_right"], np.float64) >= TOKENS_RIGHT


def _exact(figures: Figures) -> Booleans:
    return np.asarray(figures["tokens_right"], np.float64) >= 1


def _pixels(items: NDArray[Any]) -> NDArray[Any]:
    """Draw a text as a square of cells, line by line: a colour for each id, white for padding."""
    count, length = items.shape
    side = math.ceil(math.sqrt(length))
    cells = np.concatenate([items, np.full((count, side * side - length), PAD)], 1)
    ids = np.where(np.isfinite(cells), np.round(cells), 0)[..., None]
    colours = 0.15 + 0.7 * np.mod(ids * _GOLDEN * np.array([1.0, 3.0, 7.0]), 1)
    colours = np.where(ids == PAD, 1.0, np.where(np.isfinite(cells)[..., None], colours, np.nan))
    colours[~np.isfinite(cells)] = np.nan
    return colours.reshape(count, side, side, 3)


TEXT = Kind(
    name="text",
    article="a text",
    plural="texts",
    axes=("position",),
    values=Tokens(),
    success=Success(
        words="90 % of the tokens in their places, and 10 points more than a guess without gradient",
        reached=_reached,
        strict=_exact,
        strict_words="word for word",
        closeness="tokens_right",
        over="over_prior_tokens",
        margin=MARGIN,
    ),
    pixels=_pixels,
    default_dataset="opinions",
    default_model="tiny-transformer",
    shapes=((6,), (16,)),
    differentiable=False,
)
