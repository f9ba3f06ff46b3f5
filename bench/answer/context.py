"""A run's folders and device, a worker's memory, and a training's progress."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.answer.values import Attempt, Observation
from bench.datasets.base import Data
from bench.federated.simulator import Kept
from bench.trip import Reconstruction


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """A run's environment: folders, device, limits."""

    run: Path
    """Run folder."""
    data_dir: Path | None = None
    """Data folder; None for the default."""
    device: str = "cpu"
    """Torch device."""
    threads: int = 1
    """Threads for a training's client groups; attacks use a single thread."""
    save_every: float = 60.0
    """Seconds between saved training states."""
    time_limit: float | None = None
    """Seconds allowed per cell."""
    rows: int | None = None
    """Readings attacked at once, over several cells; None: GPU capacity, or a single cell on a CPU."""
    data_errors_fail_cell: bool = True
    """True: missing or altered data crash the cell.  False: they are raised, as the machine's fault."""


def many_rows(context: RunContext) -> bool:
    """Whether several cells may share a batch; never with a time limit, since the limit is per cell."""
    return context.time_limit is None and (context.rows is not None or context.device != "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProgress:
    """A training cell's progress after a round."""

    round: int
    """Finished rounds."""
    rounds: int
    """Planned rounds."""
    accuracy: float
    """Last tested accuracy."""
    epsilon: float | None
    """ε so far, by the paper's count."""
    seconds_left: float
    """Estimated remaining time."""


@dataclass(slots=True)
class Memory:
    """A worker's memory between cells."""

    data: dict[str, Data] = field(default_factory=dict)
    """Loaded data sets."""
    reconstructions: dict[tuple[Any, ...], tuple[Reconstruction, str]] = field(default_factory=dict)
    """Reconstructions by reading and attack, with the cell's id (`bench.answer.reconstruct`)."""
    simulations: Kept = field(default_factory=dict)
    """Simulated readings."""
    attacked: dict[str, tuple[Observation, Attempt]] = field(default_factory=dict)
    """Results by cell id for cells attacked before their turn (`bench.answer.company`)."""
