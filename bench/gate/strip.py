"""A strip of the victims that a change exposes most: truth, the earlier reconstruction, the reconstruction now.

The earlier pictures lie in the run folder of the baseline's cells: a record from older code moves to `kept/`, and its
arrays stay."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from bench.cell import AttackCell
from bench.errors import RecordError
from bench.gate.verdict import Verdict
from bench.leaderboard.conditions import by_condition, condition_key
from bench.leaderboard.costs import UNDEFENDED
from bench.leaderboard.worst import GRADIENT_FREE, ExampleKey, example_scores
from bench.pictures import grid
from bench.points import POINTS
from bench.record import store
from bench.record.names import entry_text
from bench.record.schema import ExampleScore, Record
from bench.sanitize import sanitize

VICTIMS = 3
_ROWS = ("truth", "then", "now")
_LEFT, _TOP, _LINE, _GAP, _FIGURES = 52, 48, 20, 12, 48  # pixels
_INK, _ABSENT = (28, 28, 28), np.uint8(225)
_SMALLEST = 1e-3  # fall of the RMSE; a smaller fall comes from another processor
_Subject = tuple[str, str, str]  # condition's title, defense, point


@dataclass(frozen=True, slots=True)
class Nearest:
    """An example's reconstruction that is nearest to the truth, over all attacks of a run that read the gradient."""

    record: Record
    """The record with the reconstruction."""
    score: ExampleScore
    """PSNR and other metrics of the reconstruction."""

    @property
    def rmse(self) -> float:
        """Root mean square error of the reconstruction against the true example, in [0, 1]; 1 without a finite
        reconstruction."""
        return 1.0 if self.score.rmse is None else self.score.rmse


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """Example for the gate's picture, with its nearest reconstructions in the baseline and in the run: a change of the
    code brought the reconstruction nearer to the truth."""

    subject: _Subject
    """Condition's title, defense, interception point."""
    example: ExampleKey
    """Key of the example: weight seed, noise draw, reading, example."""
    then: Nearest
    """The nearest reconstruction in the baseline."""
    now: Nearest
    """The nearest reconstruction in the run."""

    @property
    def leaks_now(self) -> bool:
        """True if the example leaks in the run, but not in the baseline."""
        return self.now.score.success and not self.then.score.success

    @property
    def fall(self) -> float:
        """Decrease of the reconstruction's root mean square error between baseline and run."""
        return self.then.rmse - self.now.rmse


def worst(pairs: Iterable[tuple[Record, Record]], verdict: Verdict) -> tuple[Victim, ...]:
    """Select the examples for the gate's picture, at most three: those that a change of the code exposes most. First
    come examples behind a defense that the verdict calls weaker, then examples that leak only now. Further order is by
    the decrease of the nearest reconstruction's RMSE. Private examples are left out, and examples without a nearer
    reconstruction.

    - `pairs`: pairs (record of the baseline, record of the run).
    - `verdict`: comparison of the baseline and the run."""
    weaker = {(row.title, row.defense, row.point) for row in verdict.comparisons if row.outcome == "weaker"}
    shown = [(then, now) for then, now in pairs if _is_shown(then) and now.attack is not None and not now.private]
    titles = {condition.key: condition.title for condition in by_condition(then for then, _ in shown)}
    before: dict[tuple[_Subject, ExampleKey], Nearest] = {}
    after: dict[tuple[_Subject, ExampleKey], Nearest] = {}
    for then, now in shown:
        subject = titles[condition_key(then)], entry_text(then.cell.defense), _cell(then).point
        for record, nearest in ((then, before), (now, after)):
            for key, score in example_scores(record):
                one = Nearest(record, score)
                if (subject, key) not in nearest or one.rmse < nearest[subject, key].rmse:
                    nearest[subject, key] = one
    victims = [
        Victim(subject=subject, example=key, then=before[subject, key], now=now)
        for (subject, key), now in after.items()
        if (subject, key) in before and now.record.arrays is not None
    ]
    victims = [one for one in victims if one.fall > _SMALLEST]
    victims.sort(key=lambda one: (one.subject not in weaker, not one.leaks_now, -one.fall, one.example))
    different = {(one.subject[0], one.example): one for one in reversed(victims)}
    return tuple(sorted(different.values(), key=victims.index)[:VICTIMS])


def picture(victims: Sequence[Victim], run: Path, earlier: Path | None = None) -> Image.Image:
    """Draw the true example, the reconstruction in the baseline and the reconstruction in the run, with RMSE: a column
    for each victim. A grey tile replaces a picture that is in no folder. `victims` must not be empty.

    - `run`: folder of the compared run, which may also hold the baseline's cells (experiments).
    - `earlier`: another run folder with the baseline's cells; None: only `run` is searched.

    Raises `RecordError` for missing or damaged arrays of the run."""
    folders = [folder for folder in (run, earlier) if folder is not None]
    columns = [_column(victim, run, folders) for victim in victims]
    side = max(max(tile.shape[:2]) for column in columns for tile in column)
    step = side + _FIGURES + _GAP
    page = Image.new("RGB", (_LEFT + len(columns) * step, _TOP + len(_ROWS) * (side + _GAP)), (255, 255, 255))
    pen, font = ImageDraw.Draw(page), ImageFont.load_default(13)
    for place, (victim, column) in enumerate(zip(victims, columns, strict=True)):
        left = _LEFT + place * step
        for line, text in enumerate((victim.subject[1].partition("(")[0], POINTS[victim.subject[2]].heading)):
            pen.text((left, 4 + line * _LINE), sanitize(text, (side + _FIGURES) // 8), _INK, font)
        for row, tile in enumerate(column):
            top = _TOP + row * (side + _GAP)
            page.paste(Image.fromarray(tile), (left, top))
            if row:
                figure = _figure((victim.then, victim.now)[row - 1].score)
                pen.text((left + tile.shape[1] + 6, top + side // 2 - 16), figure, _INK, font)
            if not place:
                pen.text((6, top + side // 2 - 8), _ROWS[row], _INK, font)
    return page


def _column(victim: Victim, run: Path, folders: Iterable[Path]) -> list[NDArray[np.uint8]]:
    truth, now = _tiles(victim.now.record, victim.example, run)
    for folder in folders:
        for record in _earlier(folder, victim.then.record):
            try:
                return [truth, _tiles(record, victim.example, folder)[1], now]
            except RecordError:  # the folder was cleared
                continue
    return [truth, np.full_like(truth, _ABSENT), now]


def _tiles(record: Record, example: ExampleKey, run: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    if record.attack is None or record.arrays is None:
        raise RecordError(f"{record.id}: it has no arrays; run the cell again")
    arrays = store.read_arrays(run, record.arrays)
    *_, number, position = example
    row = [number for number, _ in record.attack.numbered()].index(number)
    try:
        pair = np.stack([arrays[name][row, position] for name in ("truth", "reconstruction")])
    except (LookupError, ValueError):
        raise RecordError(f"{record.id}: its arrays lack a reading; run the cell again") from None
    truth, guess = grid.drawn(pair, record.attack.data_kind)
    return truth, guess


def _earlier(folder: Path, record: Record) -> Iterable[Record]:
    """Yield the folder's records of the baseline's cell that the baseline's code made."""
    for path in (store.record_path(folder, record.id), *sorted((folder / "kept").glob(f"{record.id}.*.json"))):
        try:
            kept = store.read(path)
        except RecordError:
            continue
        if kept.provenance == record.provenance:
            yield kept


def _is_shown(record: Record) -> bool:
    cell = record.cell
    return (
        isinstance(cell, AttackCell)
        and record.attack is not None
        and cell.defense.name != UNDEFENDED
        and not cell.attack.name.startswith(GRADIENT_FREE)
        and not cell.grants.gallery
    )


def _cell(record: Record) -> AttackCell:
    assert isinstance(record.cell, AttackCell)
    return record.cell


def _figure(score: ExampleScore) -> str:
    return "" if score.rmse is None else f"RMSE\n{score.rmse:.2f}"
