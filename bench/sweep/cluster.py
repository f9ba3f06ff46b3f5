"""Workers on other machines through Dask: `--executor dask://HOST:PORT`, an optional extra.

Dask transports cells and files, and reports when workers arrive and leave; bench's scheduler assigns the cells, as on a
single machine.  A worker uses a private folder with only the cell's inputs, so the machines need no shared file system;
bench, plug-in modules and data sets must be installed.  Only the head machine writes to the run folder.  A worker
without disk space, the data or equal code is excluded.

The cluster trusts every machine with access, and runs received code: see SECURITY.md."""

import contextlib
import queue
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.answer.context import Memory, RunContext, TrainingProgress
from bench.answer.place import HERE, Here
from bench.answer.provenance import provenance
from bench.cell import AnyCell, AttackCell, FileWeights
from bench.errors import BenchError, DataError, PluginError, RecordError, StorageError
from bench.isolation.isolation import Isolation
from bench.isolation.process import single_threaded, timeout_reason, without_trace
from bench.record.fingerprint import changed
from bench.record.schema import Provenance
from bench.record.store import CELL, write
from bench.registry import entries as registry
from bench.sanitize import first_line
from bench.sweep.bundle import admit, file_name, inputs, outputs, unpack
from bench.sweep.pool import CellReturned, Event, WorkerGone, WorkerLost, run_within_limits
from bench.sweep.session import chosen_device

SCHEME = "dask://"
PATIENCE = 120.0  # seconds without a scheduler or any worker, after which the run stops
_LOOK = 0.5  # seconds between two queries for workers
_PROGRESS = "bench-progress"
_memory: Memory | None = None  # set in a worker process
_place: Here | Isolation = HERE
_plugins: dict[str, bytes | None] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """An order to a worker on another machine: the cell (experiment) to run, and all files, settings and plug-ins that
    the worker needs."""

    cell: str
    """The cell as JSON."""
    files: dict[str, bytes]
    """Files that the cell reads, such as the attacked weights: path in the run folder → content (`bundle.inputs`)."""
    provenance: Provenance
    """Code hashes and weights that the record must have; a worker with other code is excluded."""
    plugins: dict[str, bytes | None]
    """Plug-in specification → file content; None for an installed module."""
    context: RunContext
    """Run settings; the worker replaces the run folder by its private folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """Answer of a worker in place of a record, if its machine cannot run cells (experiments), for example with a full
    disk; the worker gets no more cells."""

    reason: str
    """The machine's fault, in words."""


@dataclass(slots=True)
class _DaskWorker:
    threads: int
    cell: AnyCell | None = None
    future: Any = None
    began: float = 0.0


class ClusterPool:
    """Pool of the workers of a Dask cluster, each with a single cell (experiment) at a time
    (`bench.sweep.pool.WorkerPool`).

    - `executor`: the cluster's address, `dask://HOST:PORT`.
    - `context`: the run's folders and limits.
    - `device`: torch device of the workers.
    - `plugins`: plug-in files and modules.
    - `patience`: seconds for which the pool waits for workers.
    - `notify`: function that receives lines for the user.

    Raises `BenchError` if Dask is not installed or no scheduler answers."""

    def __init__(
        self,
        executor: str,
        context: RunContext,
        *,
        device: str = "auto",
        plugins: Sequence[str] = (),
        patience: float = PATIENCE,
        notify: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._address = _checked(executor)
        self._context, self._device, self._patience, self._notify = context, device, patience, notify
        self._plugins = {spec: _content(spec) for spec in plugins}
        self._workers: dict[str, _DaskWorker] = {}
        self._excluded: dict[str, str] = {}  # worker → reason
        self._messages: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()  # progress, and futures
        self._client = self._connected(10.0)
        self._alone_since = self._looked = time.monotonic()

    def workers(self) -> tuple[str, ...]:
        return tuple(sorted(self._workers))

    def submit(self, worker: str, cell: AnyCell, *, demand: int, company: tuple[AnyCell, ...] = ()) -> None:
        del demand, company  # a job is a single cell: another cell's memory may be on another machine
        run, there = self._context.run, self._workers[worker]
        context = replace(self._context, device=self._device, threads=there.threads, data_errors_fail_cell=False)
        job = Job(
            cell=cell.model_dump_json(),
            files=inputs(cell, run),
            provenance=provenance(cell, run),
            plugins=self._plugins,
            context=context,
        )
        there.cell, there.began = cell, time.monotonic()
        there.future = self._client.submit(
            work,
            job,
            workers=[worker],
            allow_other_workers=False,
            pure=False,
            retries=0,
            key=f"bench-{cell.id[:16]}-{time.monotonic_ns()}",
        )
        there.future.add_done_callback(lambda future: self._messages.put((worker, future)))

    def events(self) -> list[tuple[str, Event]]:
        events: list[tuple[str, Event]] = []
        with contextlib.suppress(queue.Empty):
            events += self._of_message(*self._messages.get(timeout=_LOOK))
            while True:
                events += self._of_message(*self._messages.get_nowait())
        if not events or time.monotonic() - self._looked > _LOOK:
            self._looked = time.monotonic()
            events += self._look()
        return events

    def close(self) -> None:
        futures = [worker.future for worker in self._workers.values() if worker.future is not None]
        with contextlib.suppress(Exception):  # the scheduler may be gone
            self._client.cancel(futures, force=True)
        with contextlib.suppress(Exception):
            self._client.close(timeout=5)

    def _of_message(self, name: str, message: Any) -> list[tuple[str, Event]]:
        worker = self._workers.get(name)
        if worker is None or worker.cell is None:
            return []  # from an abandoned worker
        if isinstance(message, TrainingProgress):
            return [(name, message)]
        if worker.future is not message:
            return []
        cell, worker.cell, worker.future = worker.cell, None, None
        outcome = _outcome(message)
        if isinstance(outcome, dict):
            try:
                return [(name, admit(self._context.run, outcome, cell.id))]
            except RecordError as error:
                outcome = Exclusion(reason=str(error))
        if not isinstance(outcome, Exclusion):
            if isinstance(
                outcome, WorkerLost
            ):  # a dead worker must not get the cell again; `_look` readmits a living one
                del self._workers[name]
            return [(name, outcome)]
        self._notify(f"worker {name} is excluded and gets no more cells: {outcome.reason}")
        self._excluded[name] = outcome.reason
        del self._workers[name]
        return [(name, CellReturned())]

    def _look(self) -> list[tuple[str, Event]]:
        """Compare the pool's workers with the cluster's; add new workers. Return an event for each worker that left. If
        the scheduler was lost, the event blames neither the worker nor its cell."""
        away = self._client.status != "running"
        if away:
            self._reconnect()
        present = self._present()
        if present is None:
            if not away:
                return []  # no answer is no departure
            present = {}
        gone = [(name, self._gone(self._workers.pop(name), away)) for name in self.workers() if name not in present]
        for name, threads in present.items():
            if name not in self._workers and name not in self._excluded:
                self._workers[name] = _DaskWorker(threads=threads)
        if self._workers:
            self._alone_since = time.monotonic()
        elif present or time.monotonic() - self._alone_since > self._patience:
            raise BenchError(f"{self._address}: {self._why()}; the same command goes on from what is on disk")
        return gone

    def _gone(self, worker: _DaskWorker, away: bool) -> Event:
        if worker.cell is None:
            return WorkerGone()
        with contextlib.suppress(Exception):
            self._client.cancel([worker.future], force=True)
        if away:
            return CellReturned()
        limit = self._context.time_limit
        if limit is not None and time.monotonic() - worker.began >= limit:
            return WorkerLost(reason=timeout_reason(limit), retry=False)
        return WorkerLost(reason="its worker died")

    def _reconnect(self) -> None:
        with contextlib.suppress(Exception):
            self._client.close(timeout=1)
        with contextlib.suppress(BenchError):  # not yet; `_look` tries again
            self._client = self._connected(2.0)

    def _present(self) -> dict[str, int] | None:
        """Return worker → number of threads; None if the Dask scheduler does not answer."""
        try:
            workers = self._client.scheduler_info(n_workers=-1)["workers"]
        except Exception:
            return None
        return {address: about["nthreads"] for address, about in workers.items()}

    def _why(self) -> str:
        excluded = self._excluded
        if not excluded:
            return f"no worker for {self._patience:.0f} s"
        worker, reason = next(iter(excluded.items()))
        others = f" (and {len(excluded) - 1} more)" if len(excluded) > 1 else ""
        return f"no worker is left that can go on; {worker}: {reason}{others}"

    def _connected(self, seconds: float) -> Any:
        try:
            import dask
            from distributed import Client
        except ImportError:
            raise BenchError(
                "--executor dask://…: Dask is not installed; pip install 'gradient-leakage-bench[cluster]'"
            ) from None
        dask.config.set(
            {
                "distributed.client.scheduler-info-interval": "500ms",
                "distributed.admin.large-graph-warning-threshold": "1GB",  # a cell is sent with its checkpoint
            }
        )
        messages = self._messages

        def on_event(event: tuple[Any, dict[str, Any]]) -> None:
            about = dict(event[1])
            messages.put((about.pop("worker"), TrainingProgress(**about)))

        try:
            client = Client(self._address, timeout=seconds, set_as_default=False, name="bench")
            client.subscribe_topic(_PROGRESS, on_event)
        except (OSError, TimeoutError, ValueError, RuntimeError) as error:
            raise BenchError(
                f"{self._address}: no Dask scheduler answers there ({error or type(error).__name__}); "
                "start one with `dask scheduler`"
            ) from None
        return client


def work(job: Job) -> "dict[str, bytes] | Exclusion | WorkerLost":
    """Run the cell (experiment) of `job` on a Dask worker in a private folder; return its output files, including
    the record. A worker without disk space, data or equal code returns an `Exclusion`. Any other failure counts against
    the cell, so no cell can exclude every worker."""
    global _memory
    from distributed import get_worker

    worker, cell = get_worker(), CELL.validate_json(job.cell)
    try:
        context = replace(job.context, device=chosen_device(job.context.device))
        if _memory is None:
            single_threaded()
            _memory = Memory()
        if isinstance(_place, Here) or job.plugins != _plugins:
            _use_plugins(job.plugins, worker.local_directory, context.device)
            _memory = Memory()  # results from other plug-in code must not be reused
        with tempfile.TemporaryDirectory(prefix="bench-", dir=worker.local_directory) as folder:
            return _answered(job, cell, replace(context, run=Path(folder)), _memory, worker)
    except (StorageError, DataError, PluginError) as error:
        return Exclusion(reason=str(error))
    except OSError as error:
        return Exclusion(reason=f"{error.strerror or error} ({worker.local_directory})")
    except Exception as error:
        return WorkerLost(reason=f"{type(error).__name__}: {first_line(error)}")


def _answered(
    job: Job, cell: AnyCell, context: RunContext, memory: Memory, worker: Any
) -> "dict[str, bytes] | Exclusion":
    run = context.run
    unpack(run, job.files)
    if differences := changed(job.provenance, provenance(cell, run)):
        return Exclusion(reason=f"other code than the head's: {'; '.join(differences)}")

    def on_progress(progress: TrainingProgress) -> None:
        worker.log_event(_PROGRESS, {"worker": worker.address, **asdict(progress)})

    local = cell
    if isinstance(cell, AttackCell) and isinstance(cell.weights, FileWeights):
        weights = cell.weights.model_copy(update={"path": str(run / file_name(cell.weights))})
        local = cell.model_copy(update={"weights": weights})
    record = run_within_limits(local, context, memory, on_progress, _place)
    # the trace of a hung plug-in lies in this temporary folder
    reason = record.reason and without_trace(record.reason)
    write(run, replace(record, cell=cell, reason=reason))
    return outputs(run, job.files)


def _use_plugins(plugins: dict[str, bytes | None], folder: str, device: str) -> None:
    global _place, _plugins
    _place.close()
    registry.drop_plugins()
    _place, _plugins = HERE, {}
    paths = []
    for spec, content in plugins.items():
        path = spec
        if content is not None:
            path = str(Path(tempfile.mkdtemp(prefix="bench-plugin-", dir=folder)) / Path(spec).name)
            Path(path).write_bytes(content)
        paths.append(path)
    _place, _plugins = Isolation(paths, device), plugins


def _outcome(future: Any) -> "dict[str, bytes] | Exclusion | WorkerLost | CellReturned":
    """Return the value of `work`; for a task without a value, the event or exclusion that explains the failure."""
    if future.status == "finished":
        try:
            outcome: dict[str, bytes] | Exclusion | WorkerLost = future.result(timeout=60)
        except Exception as error:  # the worker left before its result was fetched
            return WorkerLost(reason=f"its worker went with the result ({type(error).__name__})")
        return outcome
    if future.status != "error":  # cancelled, or lost with the scheduler
        return CellReturned()
    raised = future.exception()
    if type(raised).__name__ == "KilledWorker":
        return WorkerLost(reason="its worker died")
    return Exclusion(reason=f"{type(raised).__name__}: {first_line(raised)}")


def _checked(executor: str) -> str:
    """Return Dask's address for `dask://HOST:PORT` or `dask+tls://HOST:PORT`; raises `BenchError` for another text."""
    for scheme, transport in ((SCHEME, "tcp://"), ("dask+tls://", "tls://")):
        if executor.startswith(scheme) and executor.removeprefix(scheme).rpartition(":")[2].isdigit():
            return transport + executor.removeprefix(scheme)
    raise BenchError(f"--executor {executor!r}: it must be dask://HOST:PORT (or dask+tls://HOST:PORT)")


def _content(spec: str) -> bytes | None:
    """Return a plug-in file's bytes; None for a module, which must be installed on workers."""
    path = Path(spec)
    return path.read_bytes() if path.suffix == ".py" else None
