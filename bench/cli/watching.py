"""Live display for a run: a progress bar, a growing table, and a line for each training."""

import time
from collections.abc import Callable
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.text import Text

from bench.answer.context import TrainingProgress
from bench.cell import AnyCell
from bench.cli.words import duration
from bench.leaderboard.conditions import by_condition
from bench.leaderboard.forms import terminal
from bench.record.schema import Record
from bench.sanitize import LONGEST, sanitize
from bench.sweep.observer import Observer


class Screen(Observer):
    """Live display of a run's progress on `console`, as a context manager.

    - `records`: earlier records (results of cells) of the run; new records are added.
    - `cells`: number of cells (experiments) in the run.
    - `left`: function that estimates the remaining seconds; None: unknown.
    - `quiet`: True prints nothing.

    Without a terminal, a line is printed occasionally."""

    def __init__(
        self, console: Console, records: list[Record], *, cells: int, left: Callable[[], float | None], quiet: bool
    ) -> None:
        self.records = records
        self._console, self._cells, self._left = console, cells, left
        self._drawn = console.is_terminal and not quiet
        self._lines = not console.is_terminal and not quiet
        self._settled_before = len(records)
        self._trainings: dict[str, str] = {}  # training's cell id → line below the bar
        self._drawn_at = self._cost = 0.0  # time of the last drawing, and its duration
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.fields[doing]}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("cells · {task.fields[failed]} failed · {task.fields[left]} left"),
            console=console,
        )
        self._task = self._bar.add_task("", total=cells, completed=len(records), doing="starting", failed=0, left="…")
        self._live = Live(console=console, transient=True, refresh_per_second=2)

    def __enter__(self) -> Self:
        self._live.start()
        self._draw()  # show the bar from the beginning
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def on_start(self, cell: AnyCell, worker: str) -> None:
        self._bar.update(self._task, doing=f"{cell.dataset.name} · {cell.defense.name}")

    def on_progress(self, cell: AnyCell, progress: TrainingProgress) -> None:
        self._trainings[cell.id] = line = training_line(cell, progress)
        if progress.seconds_left > 60 and progress.round % max(1, progress.rounds // 10) == 0 and self._lines:
            say(self._console, line)
        self._draw()

    def on_record(self, record: Record) -> None:
        self._trainings.pop(record.id, None)
        self.records.append(record)
        self._say_record(record)
        self._draw()

    def _say_record(self, record: Record) -> None:
        """Print a line for each hundredth of the run, without a terminal."""
        fresh = len(self.records) - self._settled_before
        if self._lines and fresh % max(25, self._cells // 100) == 0:
            self._console.print(f"{len(self.records)}/{self._cells} cells, {self._time_left()} left")

    def _tables(self) -> tuple[RenderableType, ...]:
        """Return the tables above the bar, from the records so far."""
        return (terminal.conditions(by_condition(self.records), detail=False),)

    def _draw(self) -> None:
        """Draw the display; the slower a drawing, the rarer the next drawings, so that the run is not delayed."""
        now = time.monotonic()
        if not self._drawn or now - self._drawn_at < max(0.5, 20 * self._cost):
            return
        failed = sum(record.status == "crashed" for record in self.records)
        tables = self._tables()
        self._bar.update(self._task, completed=len(self.records), failed=failed, left=self._time_left())
        lines = (Text(line, style="dim") for line in self._trainings.values())
        self._live.update(Group(*tables, self._bar, *lines))
        self._drawn_at = time.monotonic()
        self._cost = self._drawn_at - now

    def _time_left(self) -> str:
        seconds = self._left()
        return "…" if seconds is None else duration(seconds)


def training_line(cell: AnyCell, progress: TrainingProgress) -> str:
    """Return a line of text about the `progress` of the training experiment `cell`: finished rounds, accuracy, ε and
    time left."""
    spent = "" if progress.epsilon is None else f" · ε {progress.epsilon:.2f} (paper)"
    return (
        f"{cell.dataset.name} · {cell.defense.name} · round {progress.round}/{progress.rounds} · "
        f"accuracy {progress.accuracy:.3f}{spent} · {duration(progress.seconds_left)} left"
    )


def say(console: Console, line: str, style: str = "") -> None:
    """Print a `line` of untrusted text on `console` in the rich style `style`; markup in the line has no effect."""
    console.print(sanitize(line, LONGEST), markup=False, style=style)
