"""How far a run is, in a file beside its records, for `bench status` from another terminal or machine."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.cell import AnyCell
from bench.errors import MALFORMED, BenchError, StorageError
from bench.record.files import write_atomically
from bench.record.store import Record

if TYPE_CHECKING:
    from bench.answer.run import Step

_FILE = "progress.json"
_EVERY = 2.0  # seconds between two writes


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """`settled` of `cells` have their record; `statuses` counts those of this run alone.  Times are of the
    running machine's clock, in seconds since 1970; `left` seconds by the estimate."""

    title: str
    state: str  # running, finished, stopped: why
    began: float
    seen: float
    cells: int
    settled: int
    statuses: dict[str, int]
    left: float | None
    busy: dict[str, dict[str, Any]] = field(default_factory=dict)  # by worker: cell, what, since, step


def read(run: Path) -> Progress | None:
    """What the run says of itself; None where it says nothing.  Raises `BenchError` for a damaged file."""
    path = run / _FILE
    try:
        found = Progress(**json.loads(path.read_text("utf-8")))
        numbers = (found.began, found.seen, found.cells, found.settled, *found.statuses.values())
        numbers += tuple(one["since"] for one in found.busy.values())
        if not all(isinstance(number, int | float) and isfinite(number) for number in numbers) or not all(
            isinstance(one["what"], str) for one in found.busy.values()
        ):
            raise TypeError("a number is none")
    except FileNotFoundError:
        return None
    except (OSError, *MALFORMED) as error:
        raise BenchError(f"{path}: not a run's progress ({error}); delete it, it is made again") from None
    return found


class Reporter:
    """Keeps the file, by a thread of its own every two seconds, so that it also is a sign of life; nothing that
    goes wrong with it is in the way of the run."""

    def __init__(
        self, run: Path, *, title: str, cells: int, settled: int, left: Callable[[], float | None]
    ) -> None:
        self._path, self._title, self._cells, self._left = run / _FILE, title, cells, left
        self._began, self._settled = time.time(), settled
        self._statuses: Counter[str] = Counter()
        self._busy: dict[str, dict[str, Any]] = {}
        self._at: dict[str, str] = {}
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._write("running")
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def started(self, cell: AnyCell, worker: str) -> None:
        what = [cell.dataset.name, cell.model.name, cell.defense.name]
        what += ["training"] if cell.kind == "training" else [cell.attack.name, cell.knowledge, cell.point]
        with self._lock:
            self._busy.pop(self._at.get(cell.id, ""), None)  # of a worker that was lost with it
            self._busy[worker] = {"cell": cell.id, "what": " · ".join(what), "since": time.time()}
            self._at[cell.id] = worker

    def stepped(self, cell: AnyCell, step: "Step") -> None:
        with self._lock:
            if (worker := self._at.get(cell.id)) in self._busy:
                self._busy[worker]["step"] = f"round {step.round}/{step.rounds}, accuracy {step.accuracy:.3f}"

    def finished(self, record: Record) -> None:
        with self._lock:
            self._settled += 1
            self._statuses[record.status] += 1
            self._busy.pop(self._at.pop(record.id, ""), None)

    def close(self, state: str) -> None:
        """The last word: `finished`, or why the run stopped."""
        self._closed.set()
        self._thread.join(10)
        self._busy.clear()
        self._write(state)

    def _keep(self) -> None:
        while not self._closed.wait(_EVERY):
            self._write("running")

    def _write(self, state: str) -> None:
        with self._lock:
            said = Progress(
                title=self._title, state=state, began=self._began, seen=time.time(), cells=self._cells,
                settled=self._settled, statuses=dict(self._statuses), busy=deepcopy(self._busy),
                left=self._left() if state == "running" else None,
            )  # fmt: skip
        with suppress(StorageError):  # a full disk: the records say so, too, and louder
            write_atomically(self._path, json.dumps(asdict(said)).encode())
