"""A run's progress in a file next to its records, for `bench status` on any terminal or machine."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from bench.cell import AnyCell
from bench.errors import BenchError, StorageError
from bench.record.files import write_atomically
from bench.record.schema import Record
from bench.sanitize import first_error
from bench.sweep.observer import Observer

if TYPE_CHECKING:
    from bench.answer.context import TrainingProgress

_FILE = "progress.json"
_EVERY = 2.0  # seconds between two writes
_Count = Annotated[int, Field(ge=0, lt=2**63)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A cell (experiment) that a worker runs now."""

    cell: str
    """Id of the cell."""
    what: str
    """The cell in words."""
    since: float
    """Time of the start, in seconds since 1970."""
    step: str | None = None
    """Progress of a training, in words; None for an attack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """Progress of a run, as stored in a file for `bench status`. All times are seconds since 1970 on the running
    machine's clock."""

    __pydantic_config__ = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid")
    title: str
    """Title of the run."""
    state: str
    """"running", "finished", or "stopped" with the reason."""
    began: float
    """Time of the start."""
    seen: float
    """Time of the file's last write."""
    cells: _Count
    """Number of cells in the run, with or without a record."""
    settled: _Count
    """Number of cells with a record."""
    statuses: dict[str, _Count]
    """Record status → number of cells in this run."""
    left: float | None
    """Estimated remaining seconds; None: unknown."""
    busy: dict[str, Running] = field(default_factory=dict)
    """Map from worker to its running cell."""


def read(run: Path) -> RunProgress | None:
    """Read the progress file of the run folder `run`; None without a file. Raises `BenchError` for a damaged file."""
    path = run / _FILE
    try:
        return TypeAdapter(RunProgress).validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        reason = first_error(error) if isinstance(error, ValidationError) else error
        raise BenchError(f"{path}: not a run's progress ({reason}); delete it, it is made again") from None


class Reporter(Observer):
    """Observer that keeps the progress file of the run folder `run` current inside a `with` statement, for `bench
    status`. A thread writes the file every two seconds; write errors never disturb the run.

    - `title`: title of the run.
    - `cells`, `settled`: number of cells (experiments), and number of cells with a record.
    - `left`: function that estimates the remaining seconds."""

    def __init__(self, run: Path, title: str, *, cells: int, settled: int, left: Callable[[], float | None]) -> None:
        self._path, self._title, self._cells, self._left = run / _FILE, title, cells, left
        self._began, self._settled = time.time(), settled
        self._statuses: Counter[str] = Counter()
        self._running: dict[str, Running] = {}  # by worker
        self._lock, self._closed = threading.Lock(), threading.Event()

    def __enter__(self) -> Self:
        self.write("running")
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._closed.set()
        self._thread.join(10)
        self._running.clear()
        reason = f": {error}" if isinstance(error, BenchError) else ""
        self.write("finished" if error is None else f"stopped{reason}")

    def on_start(self, cell: AnyCell, worker: str) -> None:
        what = [cell.dataset.name, cell.model.name, cell.defense.name]
        what += ["training"] if cell.kind == "training" else [cell.attack.name, cell.knowledge, cell.point]
        with self._lock:
            self._drop(cell.id)  # an earlier worker was lost with this cell
            self._running[worker] = Running(cell=cell.id, what=" · ".join(what), since=time.time())

    def on_progress(self, cell: AnyCell, progress: "TrainingProgress") -> None:
        step = f"round {progress.round}/{progress.rounds}, accuracy {progress.accuracy:.3f}"
        with self._lock:
            for worker, running in self._running.items():
                if running.cell == cell.id:
                    self._running[worker] = replace(running, step=step)

    def on_record(self, record: Record) -> None:
        with self._lock:
            self._settled += 1
            self._statuses[record.status] += 1
            self._drop(record.id)

    def _drop(self, cell_id: str) -> None:
        self._running = {name: running for name, running in self._running.items() if running.cell != cell_id}

    def _keep(self) -> None:
        while not self._closed.wait(_EVERY):
            self.write("running")

    def write(self, state: str) -> None:
        """Write the progress file now, with the `state` of the run: "running", "finished", or "stopped" with the
        reason."""
        with self._lock:
            progress = RunProgress(
                title=self._title,
                state=state,
                began=self._began,
                seen=time.time(),
                cells=self._cells,
                settled=self._settled,
                statuses=dict(self._statuses),
                busy=dict(self._running),
                left=self._left() if state == "running" else None,
            )
        with suppress(StorageError):  # a full disk: writing records reports it, too
            write_atomically(self._path, json.dumps(asdict(progress)).encode())
