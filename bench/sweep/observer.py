"""Who is told how a run goes on: the file for `bench status`, the time that is left, the screen."""

from typing import TYPE_CHECKING

from bench.cell import AnyCell
from bench.record.schema import Record

if TYPE_CHECKING:  # `bench status` reads a file alone, and waits for no torch
    from bench.answer.context import TrainingProgress


class Observer:
    """Is told of each event, in the run's own thread; this one does nothing with it."""

    def on_start(self, cell: AnyCell, worker: str) -> None:
        """A cell begins at a worker."""

    def on_progress(self, cell: AnyCell, progress: "TrainingProgress") -> None:
        """A training finished a round."""

    def on_record(self, record: Record) -> None:
        """A record is on disk."""
