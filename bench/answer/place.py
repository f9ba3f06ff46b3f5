"""Runners of the code of attacks, defenses, models and data sets: this process, or plug-in processes."""

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
    """CPU time and peak memory that the processes running a cell (an experiment) used."""

    cpu_seconds: float = 0.0
    """CPU time in seconds, over all threads."""
    peak_mb: float = 0.0
    """Peak memory of the largest process, in MiB."""

    @staticmethod
    def here() -> "Usage":
        """Return the CPU time and peak memory of this process since its start."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return Usage(cpu_seconds=time.process_time(), peak_mb=peak)

    def plus(self, other: "Usage") -> "Usage":
        """Return the sum of both CPU times, and the larger of both peak memories."""
        return Usage(cpu_seconds=self.cpu_seconds + other.cpu_seconds, peak_mb=max(self.peak_mb, other.peak_mb))


class Place(Protocol):
    """Runner of the code of attacks, defenses, models and data sets: this process, or separate processes for plug-ins
    (a user's code). A place keeps no true examples. In every method, `context` holds the run's folders, device and
    limits, and `memory` the values that the worker keeps between cells (experiments)."""

    def concerns(self, cell: AnyCell) -> bool:
        """Return whether the cell (experiment) must run in separate processes, because it uses a plug-in."""

    def data(self, cell: AnyCell, context: RunContext, memory: Memory) -> Data:
        """Return the data set of the cell (an experiment), from `memory` or the data folder of `context`; raises
        `DataError` if the files changed since the run was planned."""

    def attack_together(self, cell: AnyCell, company: Sequence[AnyCell], context: RunContext, memory: Memory) -> None:
        """Attack `cell` in a single batch with suitable cells (experiments) from `company`, the next cells of the run;
        the results wait in `memory` until each cell's turn. `context` is the run."""

    def attacked(
        self, cell: AttackCell, truth: CellTruth, context: RunContext, memory: Memory
    ) -> tuple[Diagnosis, Attempt]:
        """Run the defended round of the cell (an experiment) on the true examples `truth`, and attack its readings
        (observed updates). Return the checks of the readings, such as ε, and the reconstruction with its cost. A result
        of `attack_together` in `memory` is used in place of a new attack. `context` is the run. Raises `NotApplicable`
        for a cell that cannot run."""

    def train(
        self, cell: TrainingCell, context: RunContext, memory: Memory, on_progress: Callable[[TrainingProgress], None]
    ) -> tuple[TrainingResult, TrainingCost]:
        """Train the model of a training cell (an experiment); return the result, and its cost (times per round and
        step). `context` is the run, `memory` holds loaded data sets, and `on_progress` is called after every round."""

    def usage(self) -> Usage:
        """Return the CPU time and memory that this runner's separate processes used since the previous call; this
        process is not counted."""


class Here:
    """Runner of cells (experiments) in this process."""

    def concerns(self, cell: AnyCell) -> bool:
        """Return False, because all cells (experiments) run in this process."""
        return False

    def data(self, cell: AnyCell, context: RunContext, memory: Memory) -> Data:
        return load_data(cell, context, memory)

    def attack_together(self, cell: AnyCell, company: Sequence[AnyCell], context: RunContext, memory: Memory) -> None:
        attack_together(cell, company, context, memory)

    def attacked(
        self, cell: AttackCell, truth: CellTruth, context: RunContext, memory: Memory
    ) -> tuple[Diagnosis, Attempt]:
        """Run the defended round of the cell (an experiment) on the true examples `truth`. Return the checks of its
        readings (observed updates), and the reconstruction with its cost. A result that `attack_together` left in
        `memory` is used if it is for the same readings; otherwise the attack runs now. `context` is the run."""
        waiting = memory.attacked.pop(cell.id, None)
        if waiting is not None and waiting[0].reading.indices == truth.rows:
            return waiting[0].diagnosis, waiting[1]
        observation = observe_cell(cell, truth, context, memory)
        return observation.diagnosis, reconstruct(observation.reading, cell, context, memory)

    def train(
        self, cell: TrainingCell, context: RunContext, memory: Memory, on_progress: Callable[[TrainingProgress], None]
    ) -> tuple[TrainingResult, TrainingCost]:
        return train_cell(cell, context, memory, on_progress)

    def usage(self) -> Usage:
        """Return zero CPU time and memory, because this runner has no separate processes."""
        return Usage()

    def close(self) -> None:
        """Do nothing: other runners end their processes here, but this runner has none."""


HERE = Here()
