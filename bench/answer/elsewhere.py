"""Who answers parts of a cell in other processes, as `run` and `attack` see it (`bench.isolation`)."""

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bench.answer.checks import Diagnosis
from bench.answer.context import Memory, RunContext, TrainingProgress
from bench.answer.reconstruct import Attempt
from bench.cell import AnyCell, AttackCell, TrainingCell
from bench.record.schema import TrainingCost, TrainingResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """CPU seconds, of all threads, and the most memory held."""

    cpu_seconds: float = 0.0
    peak_mb: float = 0.0

    @staticmethod
    def here() -> "Usage":
        """Of this process, since it began."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return Usage(cpu_seconds=time.process_time(), peak_mb=peak)

    def plus(self, other: "Usage") -> "Usage":
        return Usage(cpu_seconds=self.cpu_seconds + other.cpu_seconds, peak_mb=max(self.peak_mb, other.peak_mb))


class Elsewhere(Protocol):
    """Runs the code of entries that are not bench's own; the process that asks loads none of it."""

    def concerns(self, cell: AnyCell) -> bool:
        """Whether an entry of the cell is not bench's own."""

    def provide_data(self, cell: AnyCell, context: RunContext, memory: Memory) -> None:
        """Put the cell's data into memory, where their loader is not bench's own."""

    def attacked(self, cell: AttackCell, context: RunContext, memory: Memory) -> tuple[Diagnosis, Attempt]:
        """The round's reading, diagnosed, and what the attacker makes of it."""

    def train(
        self, cell: TrainingCell, context: RunContext, memory: Memory, on_progress: Callable[[TrainingProgress], None]
    ) -> tuple[TrainingResult, TrainingCost]:
        """A training, as `bench.answer.train.train_cell` answers it."""

    def usage(self) -> Usage:
        """What its processes used since the last call."""
