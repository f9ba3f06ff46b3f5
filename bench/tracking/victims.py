"""A board row's victims: a table with truth and nearest reconstruction by any attack, and their picture.

All rows of a condition show the same victims, so MLflow compares the tables line by line.  This module does not import
mlflow."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bench.cell import AttackCell
from bench.errors import RecordError
from bench.kinds.base import Kind
from bench.leaderboard.board import Row
from bench.leaderboard.forms.numbers import formatted
from bench.leaderboard.worst import GRADIENT_FREE, ExampleKey
from bench.pictures import grid
from bench.pictures.recorded import drawing, tokens
from bench.pictures.words import words
from bench.record.names import attack_name
from bench.record.schema import ExampleScore, Record
from bench.record.store import read_arrays
from bench.tracking import pictures, view
from bench.tracking.view import Attached, listener

AT_POINT = 8  # victims of a row at an interception point, so at most 32 over inside, client, server and mean
PICTURE = "truth above guess"  # name in MLflow's image grid, after the listener
_LINES, _SHOWN, _ATTACK = 32, 4, 100  # victims in a table, in a tile of MLflow's image grid; characters
Victim = tuple[str, ExampleKey]  # interception point, example


@dataclass(slots=True)
class _Found:
    """What attacks found of a victim."""

    reconstructed: bool = False
    """Whether any attack reconstructed the victim."""
    recognised: bool = False
    """Whether any attack identified or named the victim."""
    best: tuple[Record, int, int, ExampleScore] | None = None
    """The nearest reconstruction: record, its reading and example in the arrays, and score; None without pictures."""


def chosen(rows: Sequence[Row], behind: Sequence[Sequence[Record]]) -> dict[str, list[Victim]]:
    """Select a few victims (attacked examples) per condition (data, model and setting) for the pictures of a board's
    rows: at each interception point, the examples that most defenses fail to protect. All rows of a condition show the
    same victims. Return condition key → victims. `behind` are the records of each of the board's `rows`."""
    leaks: dict[str, dict[str, Counter[ExampleKey]]] = {}
    for row, its in zip(rows, behind, strict=True):
        for (point, key), found in _found(its).items():
            leaks.setdefault(row.key, {}).setdefault(point, Counter())[key] += found.reconstructed
    points = {row.key: tuple(row.points) for row in rows}
    return {
        condition: [
            (point, key)
            for point in points[condition]
            for key, _ in sorted(counts.get(point, {}).items(), key=lambda each: (-each[1], each[0]))[:AT_POINT]
        ][:_LINES]
        for condition, counts in leaks.items()
    }


def attached(run: Path, behind: Sequence[Record], victims: Sequence[Victim], where: str) -> Attached:
    """Return pictures for the MLflow run of a board row: a table of its `victims`, with truth and nearest
    reconstruction side by side (texts in words), and a picture for each interception point.

    - `run`: run folder.
    - `behind`: the row's records, first the best attack at the point with the highest success rate.
    - `where`: the condition in words; empty if the data set has a single condition."""
    found = _found(behind)
    vocabulary = next(filter(None, (tokens(run, record) for record in behind)), ())
    arrays: dict[str, Mapping[str, grid.Floats]] = {}
    lines: list[list[str | Image.Image]] = []
    pairs: dict[str, list[list[grid.Floats]]] = {}
    for victim in victims:
        its = found.get(victim, _Found())
        if its.best is None:
            continue
        record, row, position, score = its.best
        assert isinstance(record.cell, AttackCell) and record.attack is not None and record.arrays is not None
        try:
            kind = record.attack.data_kind
            if record.id not in arrays:
                arrays[record.id] = read_arrays(run, record.arrays)
            pair = [arrays[record.id][name][row, position] for name in ("truth", "reconstruction")]
            shown = _shown(pair, kind, vocabulary)
        except (RecordError, ValueError, LookupError):  # the record's upload reports the error
            continue
        near = formatted(getattr(score, kind.success.closeness), ".2f" if vocabulary else ".1f")
        said = ["yes" if each else "no" for each in (its.reconstructed, its.recognised)]
        lines.append([_name(victim, where), shown, *said, near, view.clean(attack_name(record.cell), _ATTACK)])
        pairs.setdefault(victim[0], []).append(pair)
    if not lines:
        return Attached()
    worst = pairs.get(
        behind[0].cell.point if isinstance(behind[0].cell, AttackCell) else "", next(iter(pairs.values()))
    )
    # MLflow's page compares the column named `output`, line by line of the first column.
    names = ("victim", "output", "reconstructed", "recognised", kind.success.closeness, "attack")
    return Attached(
        files={pictures.GRID: pictures.png(_page(worst, kind, vocabulary))},
        images=[
            (f"{listener(point)} {PICTURE}", 0, _page(its[:_SHOWN], kind, vocabulary)) for point, its in pairs.items()
        ],
        table=dict(zip(names, map(list, zip(*lines, strict=True)), strict=True)),
    )


def _shown(pair: Sequence[grid.Floats], kind: Kind, vocabulary: Sequence[str]) -> str | Image.Image:
    if not vocabulary:
        return _upper(grid.sheet(grid.drawn(np.stack(pair), kind)[None], grid.GAP))
    truth, guess = (each[None, None] for each in pair)
    (text,) = words(truth, guess, vocabulary)
    return f"{' '.join(text.truth)} → {' '.join(text.marked)}"


def _upper(pixels: NDArray[np.uint8]) -> Image.Image:
    """Draw a pair in the upper half of a square, because a cell of MLflow's table shows only this half."""
    height, width, _ = pixels.shape
    below = ((0, max(0, width - height)), (0, 0), (0, 0))
    return Image.fromarray(np.pad(pixels, below, constant_values=grid.PAPER))


def _page(pairs: Sequence[Sequence[grid.Floats]], kind: Kind, vocabulary: Sequence[str]) -> Image.Image:
    truth, guess = (np.stack(values)[:, None] for values in zip(*pairs, strict=True))
    page = drawing(truth, guess, kind, vocabulary)
    assert page is not None
    return page


def _found(records: Sequence[Record]) -> dict[Victim, _Found]:
    found: dict[Victim, _Found] = {}
    for record in records:
        cell, result = record.cell, record.attack
        if not isinstance(cell, AttackCell) or result is None or cell.attack.name.startswith(GRADIENT_FREE):
            continue
        for row, (number, reading) in enumerate(result.numbered()):
            for position, score in enumerate(reading.examples):
                its = found.setdefault((cell.point, (cell.seed, cell.draw, number, position)), _Found())
                its.recognised |= bool(score.identified or score.named)
                if cell.grants.gallery:  # the attacker saw the true example: no reconstruction
                    continue
                its.reconstructed |= score.success
                near = result.data_kind.success.closeness
                nearest = its.best is None or (getattr(score, near) or 0.0) > (getattr(its.best[3], near) or 0.0)
                if record.arrays is not None and nearest:
                    its.best = record, row, position, score
    return found


def _name(victim: Victim, where: str) -> str:
    point, (seed, draw, reading, example) = victim
    others = {"example": example, "draw": draw, "seed": seed}
    rest = "".join(f", {name} {number}" for name, number in others.items() if number)
    return f"{listener(point)}, reading {reading}{rest}{where and f', {where}'}"
