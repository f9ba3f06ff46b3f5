"""A run's folders and device, the memory that a worker keeps between cells, and a training's progress."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.answer.values import Attempt, Observation
from bench.datasets.base import Data
from bench.federated.simulator import Kept
from bench.trip import Reconstruction


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """Settings of a run that every function which runs a cell (an experiment) gets: the run's folders, the device, and
    limits of time and batch size."""

    run: Path
    """Run folder."""
    data_dir: Path | None = None
    """Folder for data sets; None for the default folder."""
    device: str = "cpu"
    """Torch device for attacks and training."""
    threads: int = 1
    """Number of threads that train groups of clients; attacks use a single thread."""
    save_every: float = 60.0
    """Seconds between saved training states."""
    time_limit: float | None = None
    """Seconds allowed per cell (experiment); None for no limit."""
    rows: int | None = None
    """Number of readings (observed updates) attacked at once, over several cells; None: a GPU's capacity, or a single
    cell on a CPU."""
    data_errors_fail_cell: bool = True
    """True: missing or altered data crash the cell. False: the error is raised, as a fault of the machine."""


def many_rows(context: RunContext) -> bool:
    """Return whether readings (observed updates) of several cells (experiments) of the run `context` are attacked in a
    single batch, to fill a GPU. This is so on a GPU or with `context.rows` set, but not with a time limit per cell."""
    return context.time_limit is None and (context.rows is not None or context.device != "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProgress:
    """A training's progress after a round, for the display."""

    round: int
    """Number of finished rounds."""
    rounds: int
    """Number of planned rounds."""
    accuracy: float
    """Test accuracy at the last test, in [0, 1]."""
    epsilon: float | None
    """ε spent so far, by the accounting of the defense's paper; None without accounting."""
    seconds_left: float
    """Estimated remaining time in seconds."""


@dataclass(slots=True)
class Memory:
    """Values that a worker process keeps between cells (experiments), to save time: data sets, reconstructions,
    simulated readings."""

    data: dict[str, Data] = field(default_factory=dict)
    """JSON of a data set's configuration → loaded data set."""
    reconstructions: dict[tuple[Any, ...], tuple[Reconstruction, str]] = field(default_factory=dict)
    """Key of a reading and an attack (`bench.answer.reconstruct.reading_key`) → finished reconstruction, and its cell's
    id."""
    simulations: Kept = field(default_factory=dict)
    """Hash of a simulator and its arguments → simulated readings, for black-box attackers."""
    attacked: dict[str, tuple[Observation, Attempt]] = field(default_factory=dict)
    """Cell id → observation and reconstruction, for cells attacked before their turn (`bench.answer.company`)."""
