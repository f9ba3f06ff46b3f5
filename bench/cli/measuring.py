"""Live display of a calibration: the bar of a run, and a line for each strength whose cells are finished."""

import time
from collections.abc import Callable, Hashable, Iterable, Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from bench.calibration.measure import Question, accuracy_of, counts_of, missing_figure, typed
from bench.cell import AnyCell, AttackCell, CheckpointWeights, TrainingCell
from bench.cli.watching import Screen
from bench.cli.words import duration
from bench.leaderboard.forms.numbers import share
from bench.record.groups import grouped
from bench.record.schema import Record
from bench.sanitize import LONGEST, sanitize

_SILENT = 60.0  # seconds without a finished strength after which a log gets a count of cells


class Strengths(Screen):
    """Live display of a calibration's progress on `console`, as a context manager: as `Screen`, with a line for each
    finished strength of a defense in place of a table, such as `gaussian:variance=0.03 at type-1: 42% named (of 512)`.
    A log also gets a count of cells after each minute without such a line.

    - `cells`: all cells (experiments) of this part of the calibration.
    - `settled`: earlier records (results) of these cells.
    - `left`: function that estimates the remaining seconds; None: unknown."""

    def __init__(
        self, console: Console, cells: Sequence[AnyCell], settled: list[Record], *, left: Callable[[], float | None]
    ) -> None:
        super().__init__(console, settled, cells=len(cells), left=left, quiet=False)
        self._of = {cell.id: _key(cell) for cell in cells}
        self._groups = {key: len(each) for key, each in grouped(cells, _key).items()}
        self._finished = grouped(settled, lambda record: self._of[record.id])
        self._said = time.monotonic()

    def _say_record(self, record: Record) -> None:
        key = self._of[record.id]
        group = self._finished.setdefault(key, [])
        group.append(record)
        whole = len(group) == self._groups[key]
        if not whole and not (self._lines and time.monotonic() - self._said > _SILENT):
            return
        left = self._left()
        more = f"; {duration(left)} left" if left is not None and left >= 1 else ""
        progress = line(group) if whole else f"{len(self.records)} of {self._cells} cells"
        text = Text(sanitize(f"  {progress}{more}", LONGEST))
        self._console.print(text, soft_wrap=not self._console.is_terminal)
        self._said = time.monotonic()

    def _tables(self) -> tuple[RenderableType, ...]:
        return ()


def _key(cell: AnyCell) -> Hashable:
    """Return a key that is equal for cells of the same defense, strength and measured quantity."""
    if isinstance(cell, TrainingCell):
        return str(cell.defense), cell.last_round
    return str(cell.defense), cell.point, cell.attack.name, _when(cell)


def line(records: Sequence[Record]) -> str:
    """Return the result of a defense at a strength as text, from all its `records` of equal attacks, or of equal
    trainings."""
    cell = records[0].cell
    name = typed(cell.defense)
    if (missing := missing_figure(records)) is not None:
        return f"{name}: {missing}"
    if isinstance(cell, TrainingCell):
        return f"{name}: {_trained(cell, records)}"
    question: Question = "named" if cell.grants.gallery else "reconstructed"
    counts = counts_of(0.0, records, question)
    leaked = "no figure" if counts is None else f"{share(counts.share).replace(' ', '')} {question}"
    of = "" if counts is None else f" (of {sum(counts.readings)})"
    return f"{name} at {cell.point}: {leaked}{of}{_when(cell)}"


def _when(cell: AttackCell) -> str:
    if not isinstance(cell.weights, CheckpointWeights):
        return ""
    if cell.weights.further:
        return f", with all {len(cell.weights.rounds)} updates of a client"
    return ", halfway through the training"


def _trained(cell: TrainingCell, records: Iterable[Record]) -> str:
    """Return the accuracy of trainings that differ in the learning rate, or in the seed."""
    ranked = sorted((accuracy_of(record), record.cell.federated.rate) for record in records)
    (least, _), (most, best) = ranked[0], ranked[-1]
    if len({rate for _, rate in ranked}) > 1:
        return f"{most:.1%} accuracy after {cell.last_round} rounds, best rate {best:g}"
    accuracy = f"{100 * least:.1f}–{most:.1%}" if len(ranked) > 1 else f"{most:.1%}"
    return f"{accuracy} accuracy after {cell.last_round} rounds ({len(ranked)} trainings)"
