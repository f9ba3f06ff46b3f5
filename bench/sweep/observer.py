"""Observers: objects that receive the events of a run, for example the progress file or the screen."""

from typing import TYPE_CHECKING

from bench.cell import AnyCell
from bench.record.schema import Record

if TYPE_CHECKING:  # `bench status` only reads a file, and should not wait for torch
    from bench.answer.context import TrainingProgress


class Observer:
    """Receiver of a run's events, called in the run's thread; this base class ignores all events."""

    def on_start(self, cell: AnyCell, worker: str) -> None:
        """Called when the worker with the name `worker` has begun to run the `cell` (experiment)."""

    def on_progress(self, cell: AnyCell, progress: "TrainingProgress") -> None:
        """Called when the training `cell` has finished a round; `progress` has the number of rounds, the latest
        accuracy and the remaining time."""

    def on_record(self, record: Record) -> None:
        """Called when the `record` (result) of a cell (experiment) is on disk."""
