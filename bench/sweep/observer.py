"""Observers of a run: progress file, remaining time, screen."""

from typing import TYPE_CHECKING

from bench.cell import AnyCell
from bench.record.schema import Record

if TYPE_CHECKING:  # `bench status` reads a file alone, and waits for no torch
    from bench.answer.context import TrainingProgress


class Observer:
    """Receives each event in the run's thread; this base class ignores events."""

    def on_start(self, cell: AnyCell, worker: str) -> None:
        """A worker begins a cell."""

    def on_progress(self, cell: AnyCell, progress: "TrainingProgress") -> None:
        """A training finished a round."""

    def on_record(self, record: Record) -> None:
        """A record is on disk."""
