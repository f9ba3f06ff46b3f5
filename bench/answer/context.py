"""Where a run lives, what a worker keeps between cells, and what a training tells while it runs."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.datasets.base import Data
from bench.federated.simulator import Kept
from bench.trip import Reconstruction


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """A run's folder, data folder and device.

    `threads` may be taken by a training's groups of clients; `save_every` is the seconds between two saved states of a
    training, and `time_limit` the seconds that a cell may take.  `rows`: readings attacked at once, of several cells
    together; None: as many as a GPU has room for, on a CPU each cell by itself.  With `data_errors_fail_cell` data that
    are missing or altered crash the cell; without, they are the machine's fault, and raised.
    """

    run: Path
    data_dir: Path | None = None
    device: str = "cpu"
    threads: int = 1
    save_every: float = 60.0
    time_limit: float | None = None
    rows: int | None = None
    data_errors_fail_cell: bool = True


def many_rows(context: RunContext) -> bool:
    """Whether readings of several cells may be attacked together; not with a time limit, which is each cell's own."""
    return context.time_limit is None and (context.rows is not None or context.device != "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProgress:
    """How far a training cell is: rounds done of all, accuracy as last tested, ε so far (the paper's count)."""

    round: int
    rounds: int
    accuracy: float
    epsilon: float | None
    seconds_left: float


@dataclass(slots=True)
class Memory:
    """What a worker keeps between cells: loaded data, reconstructions by attack and reading, simulated readings, and of
    cells that were `attacked` beside another, by id, their observation and attempt (`bench.answer.company`)."""

    data: dict[str, Data] = field(default_factory=dict)
    reconstructions: dict[tuple[Any, ...], tuple[Reconstruction, str]] = field(default_factory=dict)
    simulations: Kept = field(default_factory=dict)
    attacked: dict[str, tuple[Any, Any]] = field(default_factory=dict)
