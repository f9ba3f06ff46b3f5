"""Workers on other machines, by Dask: `--executor dask://HOST:PORT`, an optional extra.

Dask carries cells out and files back, and says who comes and goes; which cell goes where is the agenda's, as on
one machine.  A worker answers in a folder of its own that is empty but for what the cell needs, so that no
file system need be shared: bench, the plug-ins' modules and the data sets must be there.  The head alone writes
to the run folder.  A worker that lacks room, data or this bench's code gets no more cells.

The cluster trusts who can reach it, and runs what it is sent: see SECURITY.md.
"""

import contextlib
import queue
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.answer.run import Memory, Place, Step, answering
from bench.cell import AnyCell, AttackCell, FileWeights
from bench.errors import BenchError, DataError, PluginError, RecordError, StorageError
from bench.record import fingerprint as source
from bench.record.store import cell_from, write
from bench.registry import entries as registry
from bench.sanitize import first_line
from bench.sweep.bundle import admit, given_name, left, needed, unpack
from bench.sweep.pool import Gone, Lost, News, Returned, answer, steady, too_long
from bench.sweep.session import chosen_device

SCHEME = "dask://"
PATIENCE = 120.0  # seconds without a scheduler, or without one worker, after which the run stops
_LOOK = 0.5  # seconds between two looks at who is there
_STEPS = "bench-steps"
_memory: Memory | None = None  # of this process, where it is a worker
_plugged: dict[str, bytes | None] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a worker is sent, as plain data: the cell as JSON, what it is answered from, what must answer it."""

    cell: str
    files: dict[str, bytes]
    source: dict[str, Any]
    plugins: dict[str, bytes | None]  # spec → the file; None: an installed module
    device: str
    data_dir: str | None
    threads: int
    limit: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfit:
    """Why a worker cannot answer what another may."""

    reason: str


@dataclass(slots=True)
class _Worker:
    threads: int
    cell: AnyCell | None = None
    future: Any = None
    began: float = 0.0


@dataclass(slots=True)
class _State:
    """Who is there, who is unfit and why, and what was heard."""

    workers: dict[str, _Worker] = field(default_factory=dict)
    unfit: dict[str, str] = field(default_factory=dict)
    heard: "queue.SimpleQueue[tuple[str, Any]]" = field(default_factory=queue.SimpleQueue)


class Cluster:
    """A crew of a Dask cluster's workers (`bench.sweep.pool.Crew`): one cell at a time a worker process.

    Raises `BenchError` where Dask is not installed or nothing answers at the address.
    """

    def __init__(
        self, executor: str, place: Place, *, device: str = "auto", plugins: Sequence[str] = (),
        patience: float = PATIENCE, told: Callable[[str], None] = lambda line: None,
    ) -> None:  # fmt: skip
        self._address = _checked(executor)
        self._place, self._device, self._patience, self._told = place, device, patience, told
        self._plugins = {spec: _content(spec) for spec in plugins}
        self._state = _State()
        self._client = self._connected(10.0)
        self._alone_since = self._looked = time.monotonic()

    def members(self) -> tuple[str, ...]:
        return tuple(sorted(self._state.workers))

    def give(self, worker: str, cell: AnyCell, *, demand: int) -> None:
        del demand
        found = self._state.workers[worker]
        job = Job(
            cell=cell.model_dump_json(), files=needed(cell, self._place.run), plugins=self._plugins,
            source=answering(cell, self._place.run), device=self._device, limit=self._place.limit,
            data_dir=str(self._place.data_dir) if self._place.data_dir else None, threads=found.threads,
        )  # fmt: skip
        found.cell, found.began = cell, time.monotonic()
        found.future = self._client.submit(
            work, job, workers=[worker], allow_other_workers=False, pure=False, retries=0,
            key=f"bench-{cell.id[:16]}-{time.monotonic_ns()}",
        )  # fmt: skip
        found.future.add_done_callback(lambda future: self._state.heard.put((worker, future)))

    def news(self) -> list[tuple[str, News]]:
        told: list[tuple[str, News]] = []
        with contextlib.suppress(queue.Empty):
            told += self._heard(*self._state.heard.get(timeout=_LOOK))
            while True:
                told += self._heard(*self._state.heard.get_nowait())
        if not told or time.monotonic() - self._looked > _LOOK:
            self._looked = time.monotonic()
            told += self._look()
        return told

    def close(self) -> None:
        futures = [worker.future for worker in self._state.workers.values() if worker.future is not None]
        with contextlib.suppress(Exception):  # a scheduler that is gone
            self._client.cancel(futures, force=True)
        with contextlib.suppress(Exception):
            self._client.close(timeout=5)

    def _heard(self, worker: str, found: Any) -> list[tuple[str, News]]:
        at = self._state.workers.get(worker)
        if isinstance(found, Step):
            return [(worker, found)] if at is not None and at.cell is not None else []
        if at is None or at.cell is None or at.future is not found:
            return []  # of a worker that was given up
        if found.status == "finished":
            outcome: dict[str, bytes] | Unfit | Lost = self._result(found)
        elif found.status == "error":
            outcome = _of_error(found.exception())
        else:  # cancelled or lost with the scheduler
            at.cell, at.future = None, None
            return [(worker, Returned())]
        cell, at.cell, at.future = at.cell, None, None
        if isinstance(outcome, dict):
            try:
                return [(worker, admit(self._place.run, outcome, cell.id))]
            except RecordError as error:
                outcome = Unfit(reason=str(error))
        if isinstance(outcome, Lost):
            return [(worker, outcome)]
        self._told(f"worker {worker} gets no more cells: {outcome.reason}")
        self._state.unfit[worker] = outcome.reason
        del self._state.workers[worker]
        return [(worker, Returned())]

    def _result(self, future: Any) -> "dict[str, bytes] | Unfit | Lost":
        try:
            found: dict[str, bytes] | Unfit = future.result(timeout=60)
        except Exception as error:  # it was there, and its worker went before it was fetched
            return Lost(reason=f"its worker went with the result ({type(error).__name__})")
        return found

    def _look(self) -> list[tuple[str, News]]:
        """Who came and who went, by what the scheduler says; where the scheduler itself went, nobody is to blame."""
        away = self._client.status != "running"
        if away:
            self._reconnect()
        there = self._there()
        gone = [
            (name, self._went(self._state.workers.pop(name), away))
            for name in self.members()
            if name not in there
        ]
        for name, threads in there.items():
            if name not in self._state.workers and name not in self._state.unfit:
                self._state.workers[name] = _Worker(threads=threads)
        if self._state.workers:
            self._alone_since = time.monotonic()
        elif time.monotonic() - self._alone_since > self._patience or self._all_unfit(there):
            raise BenchError(f"{self._address}: {self._why()}; the same command goes on from what is on disk")
        return gone

    def _went(self, at: _Worker, away: bool) -> News:
        """What is to be said of a worker that is not there any more."""
        if at.cell is None:
            return Gone()
        with contextlib.suppress(Exception):
            self._client.cancel([at.future], force=True)
        if away:
            return Returned()
        limit = self._place.limit
        if limit is not None and time.monotonic() - at.began >= limit:
            return Lost(reason=too_long(self._place), again=False)
        return Lost(reason="its worker died")

    def _reconnect(self) -> None:
        with contextlib.suppress(Exception):
            self._client.close(timeout=1)
        with contextlib.suppress(BenchError):  # not yet; `_look` comes again
            self._client = self._connected(2.0)

    def _there(self) -> dict[str, int]:
        """The workers' addresses and threads."""
        try:
            found = self._client.scheduler_info(n_workers=-1)["workers"]
        except Exception:  # the scheduler went while it was asked
            return {}
        return {address: about["nthreads"] for address, about in found.items()}

    def _all_unfit(self, there: dict[str, int]) -> bool:
        return bool(there) and set(there) <= set(self._state.unfit)

    def _why(self) -> str:
        if self._state.unfit:
            worker, reason = next(iter(self._state.unfit.items()))
            others = len(self._state.unfit) - 1
            return f"no worker is left that can go on; {worker}: {reason}" + f" (and {others} more)" * bool(
                others
            )
        return f"no worker for {self._patience:.0f} s"

    def _connected(self, seconds: float) -> Any:
        """A client that hears what trainings tell; raises `BenchError` where nothing answers."""
        try:
            import dask
            from distributed import Client
        except ImportError:
            raise BenchError(
                "--executor dask://…: Dask is not installed; pip install 'gradient-leakage-bench[cluster]'"
            ) from None
        dask.config.set({
            "distributed.client.scheduler-info-interval": "500ms",
            "distributed.admin.large-graph-warning-threshold": "1GB",  # a cell takes its checkpoint along
        })  # fmt: skip
        heard = self._state.heard
        try:
            client = Client(self._address, timeout=seconds, set_as_default=False, name="bench")
            client.subscribe_topic(_STEPS, lambda event: heard.put((event[1]["worker"], _step(event[1]))))
        except (OSError, TimeoutError, ValueError, RuntimeError) as error:
            raise BenchError(
                f"{self._address}: no Dask scheduler answers there ({error or type(error).__name__}); "
                "start one with `dask scheduler`"
            ) from None
        return client


def work(job: Job) -> "dict[str, bytes] | Unfit | Lost":
    """On a worker: answer a cell in a folder of its own; the files that it left, its record among them.

    What the place lacks (room, data, code) makes the worker unfit; all else is laid to the cell, so that one cell
    cannot take every worker along.
    """
    global _memory
    from distributed import get_worker

    worker = get_worker()
    cell = cell_from(job.cell)
    try:
        if _memory is None:
            steady(chosen_device(job.device))
            _memory = Memory()
        if _plug(job.plugins):
            _memory = Memory()  # what other code made of equal readings counts for nothing now
        with tempfile.TemporaryDirectory(prefix="bench-", dir=worker.local_directory) as folder:
            return _answered(job, cell, Path(folder), _memory, worker)
    except (StorageError, DataError, PluginError) as error:
        return Unfit(reason=str(error))
    except OSError as error:
        return Unfit(reason=f"{error.strerror or error} ({worker.local_directory})")
    except Exception as error:
        return Lost(reason=f"{type(error).__name__}: {first_line(error)}")


def _answered(job: Job, cell: AnyCell, run: Path, memory: Memory, worker: Any) -> "dict[str, bytes] | Unfit":
    unpack(run, job.files)
    place = Place(
        run=run, data_dir=Path(job.data_dir) if job.data_dir else None, device=chosen_device(job.device),
        threads=job.threads, limit=job.limit, blames_data=False,
    )  # fmt: skip
    if differs := source.changed(job.source, answering(cell, run)):
        return Unfit(reason=f"other code than the head's: {'; '.join(differs)}")

    def told(step: Step) -> None:
        about = {name: getattr(step, name) for name in Step.__dataclass_fields__}
        worker.log_event(_STEPS, {"worker": worker.address, **about})

    asked = cell
    if isinstance(cell, AttackCell) and isinstance(cell.weights, FileWeights):
        here = cell.weights.model_copy(update={"path": str(run / given_name(cell.weights))})
        asked = cell.model_copy(update={"weights": here})
    record = answer(asked, place, memory, told)
    write(run, replace(record, cell=cell.model_dump(mode="json")))
    return left(run, job.files)


def _plug(plugins: dict[str, bytes | None]) -> bool:
    """Have these plug-ins and no others; whether that changed anything.  Files come whole, and are kept as long
    as the process lives."""
    global _plugged
    if plugins == _plugged:
        return False
    registry.drop_plugins()
    _plugged = {}
    for spec, content in plugins.items():
        path = spec
        if content is not None:
            path = str(Path(tempfile.mkdtemp(prefix="bench-plugin-")) / Path(spec).name)
            Path(path).write_bytes(content)
        registry.add_plugin(path)
    _plugged = plugins
    return True


def _of_error(error: BaseException) -> "Unfit | Lost":
    """What Dask says of a task that gave no result: its worker died with it, or cannot run it at all."""
    if type(error).__name__ == "KilledWorker":
        return Lost(reason="its worker died")
    return Unfit(reason=f"{type(error).__name__}: {first_line(error)}")


def _step(said: dict[str, Any]) -> Step:
    return Step(**{name: said[name] for name in Step.__dataclass_fields__})


def _checked(executor: str) -> str:
    """Dask's own address of `dask://HOST:PORT` or `dask+tls://HOST:PORT`; raises `BenchError` for another."""
    for scheme, own in ((SCHEME, "tcp://"), ("dask+tls://", "tls://")):
        if executor.startswith(scheme) and executor.removeprefix(scheme).rpartition(":")[2].isdigit():
            return own + executor.removeprefix(scheme)
    raise BenchError(f"--executor {executor!r}: it must be dask://HOST:PORT (or dask+tls://HOST:PORT)")


def _content(spec: str) -> bytes | None:
    """A plug-in file's bytes, as its hash is of them; None for a module, which must be installed on the workers."""
    path = Path(spec)
    return path.read_bytes() if path.suffix == ".py" else None
