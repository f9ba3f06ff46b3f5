"""Places for the entries' code: this process (`HERE`), or a worker's plug-in processes (`bench.isolation`)."""

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from bench.answer.company import attack_together
from bench.answer.context import Memory, RunContext, TrainingProgress
from bench.answer.observation import observe_cell
from bench.answer.reconstruct import reconstruct
from bench.answer.setup import load_data
from bench.answer.train import train_cell
from bench.answer.truth import CellTruth
from bench.answer.values import Attempt, Diagnosis
from bench.cell import AnyCell, AttackCell, TrainingCell
from bench.datasets.base import Data
from bench.record.schema import TrainingCost, TrainingResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Resources used by processes."""

    cpu_seconds: float = 0.0
    """CPU time, all threads."""
    peak_mb: float = 0.0
    """Peak memory in the largest process."""

    @staticmethod
    def here() -> "Usage":
        """Usage by this process since its start."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return Usage(cpu_seconds=time.process_time(), peak_mb=peak)

    def plus(self, other: "Usage") -> "Usage":
        return Usage(cpu_seconds=self.cpu_seconds + other.cpu_seconds, peak_mb=max(self.peak_mb, other.peak_mb))


class Place(Protocol):
    """A place that runs the entries' code; truth and scores stay in the calling process."""

    def concerns(self, cell: AnyCell) -> bool:
        """Whether the cell runs in other processes."""

    def data(self, cell: AnyCell, context: RunContext, memory: Memory) -> Data:
        """The cell's data set; raises `DataError` for changed content."""

    def attack_together(self, cell: AnyCell, company: Sequence[AnyCell], context: RunContext, memory: Memory) -> None:
        """Attack the cell with suitable later cells in a single batch; results wait in memory."""

    def attacked(
        self, cell: AttackCell, truth: CellTruth, context: RunContext, memory: Memory
    ) -> tuple[Diagnosis, Attempt]:
        """Observe and attack the cell; raises `NotApplicable` for a cell that cannot run."""

    def train(
        self, cell: TrainingCell, context: RunContext, memory: Memory, on_progress: Callable[[TrainingProgress], None]
    ) -> tuple[TrainingResult, TrainingCost]:
        """Train, as `bench.answer.train.train_cell`."""

    def usage(self) -> Usage:
        """Usage by other processes since the previous call."""


class Here:
    """This process."""

    def concerns(self, cell: AnyCell) -> bool:
        """Never: all cells run in this process."""
        del cell
        return False

    def data(self, cell: AnyCell, context: RunContext, memory: Memory) -> Data:
        """The data set, from memory or its loader."""
        return load_data(cell, context, memory)

    def attack_together(self, cell: AnyCell, company: Sequence[AnyCell], context: RunContext, memory: Memory) -> None:
        """As `bench.answer.company.attack_together`."""
        attack_together(cell, company, context, memory)

    def attacked(
        self, cell: AttackCell, truth: CellTruth, context: RunContext, memory: Memory
    ) -> tuple[Diagnosis, Attempt]:
        """The waiting result from `attack_together` if it covers the readings left, else a new attempt."""
        waiting = memory.attacked.pop(cell.id, None)
        if waiting is not None and waiting[0].reading.indices == truth.rows:
            return waiting[0].diagnosis, waiting[1]
        observation = observe_cell(cell, truth, context, memory)
        return observation.diagnosis, reconstruct(observation.reading, cell, context, memory)

    def train(
        self, cell: TrainingCell, context: RunContext, memory: Memory, on_progress: Callable[[TrainingProgress], None]
    ) -> tuple[TrainingResult, TrainingCost]:
        """As `bench.answer.train.train_cell`."""
        return train_cell(cell, context, memory, on_progress)

    def usage(self) -> Usage:
        """Zero: no other process."""
        return Usage()

    def close(self) -> None:
        """No process to end."""


HERE = Here()
